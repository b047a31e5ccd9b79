package uitest

import (
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "write the pictures of the README into this `directory`")

// paths returns the address of every page, in a broken world.
func (w *world) paths() []string {
	w.t.Helper()
	clients := w.clients()
	if len(clients) != 1 {
		w.t.Fatalf("%d clients", len(clients))
	}
	return []string{
		"/", "/upstreams", "/upstreams/east", "/upstreams/lab", "/upstreams/west", "/events", "/events?window=1h&upstream=east",
		"/resources", "/resources?q=bank", "/resource?kind=networking.istio.io/ServiceEntry&namespace=payments&name=bank", "/resource?kind=se&namespace=nowhere&name=nothing",
		"/services", "/service?host=bank.example", "/clients", "/client?id=" + url.QueryEscape(clients[0].Connection), "/conflicts", "/upstreams/nobody",
	}
}

// TestThePageAnswersFiveQuestions is a night shift: a newcomer has only the page.
func TestThePageAnswersFiveQuestions(t *testing.T) {
	t.Parallel()
	w := broken(t)
	b := newBrowser(t, w.base)
	b.theme("light")

	// Is everything in sync?
	b.open("/")
	b.wants("overview", "ready, degraded", "1 of 3 upstreams up to date", "1 of 1 client up to date", "disconnected")
	b.shot("ui-overview-light.png")

	// What is held, and should I release it? The first problem links there.
	b.do("open the hold", chromedp.Click(chromedp.CSS(`#reasons li:first-child a`)), chromedp.WaitVisible(chromedp.CSS(`#deletions`)))
	b.wants("hold", "A release would delete", "at every client", "Release these", "relay release east --hold ", "relay freeze east", "nobody", "west")
	b.shot("ui-hold.png")

	// What changed at that time?
	at := w.night.UTC().Format("15:04")
	b.open("/events")
	b.do("ask for a time", chromedp.SetValue(chromedp.CSS(`main form [name=at]`), at), chromedp.Submit(chromedp.CSS(`main form`)), chromedp.WaitVisible(chromedp.CSS(`#list tbody`)))
	b.await(`location.search.includes('at=')`)
	b.wants("timeline", "night/changed-at-night", "held")
	b.open("/events?type=changed&upstream=west&at=" + url.QueryEscape(at))
	b.wants("timeline", "night/changed-at-night")
	b.do("look at the event", chromedp.Click(chromedp.CSS(`#list tbody tr:first-child th a`)), chromedp.WaitVisible(chromedp.CSS(`#resources`)))
	b.wants("event", "night/changed-at-night", "added", "upstream")
	b.open("/events")
	b.wants("timeline", "held", "lost")
	b.shot("ui-timeline.png")

	// Who shadows what?
	b.open("/conflicts")
	b.wants("conflicts", "bank", "payments", "shadowed", "east", "west", "first in order")
	b.do("look at the resource", chromedp.Click(chromedp.CSS(`#keys tbody th a`)), chromedp.WaitVisible(chromedp.CSS(`#explain`)))
	b.wants("explain", "is served from upstream east: first in order", "shadowed", "acknowledged", "apiVersion: networking.istio.io/v1")
	b.shot("ui-resource.png")

	// What did client X get?
	b.open("/clients")
	b.do("look at the client", chromedp.Click(chromedp.CSS(`#list tbody th a`)), chromedp.WaitVisible(chromedp.CSS(`#types`)))
	b.wants("client", "edge", "synced", "networking.istio.io/v1/ServiceEntry", "Acknowledged")

	b.theme("dark")
	b.open("/")
	b.shot("ui-overview-dark.png")
}

// shot writes a screenshot to the directory of the flag.
func (b *browser) shot(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	picture, err := run(b, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	const most = 150 << 10
	if len(picture) > most {
		b.t.Errorf("%s has %d bytes, more than %d", name, len(picture), most)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func TestEveryPageIsBlamelessAndAccessibleInBothThemes(t *testing.T) {
	t.Parallel()
	w := broken(t)
	b := newBrowser(t, w.base)
	for _, path := range w.paths() {
		b.theme("light")
		b.open(path)
		b.await(`document.querySelector('#live') && !document.querySelector('#live').hidden`)
		b.blameless(path)
		b.accessible("light " + path)
		if n := ask[int](b, `document.querySelectorAll('h1').length`); n != 1 {
			t.Errorf("%s: %d headings of the first level", path, n)
		}
		b.fits(path)
		b.zoom(2)
		b.fits("zoomed " + path)
		b.zoom(1)
		b.theme("dark")
		if light := ask[string](b, `getComputedStyle(document.body).backgroundColor`); light == "rgb(255, 255, 255)" {
			t.Errorf("%s: it is as light as ever in the dark", path)
		}
		b.readable("dark " + path)
	}
}

func TestEveryPageWorksWithoutJavaScript(t *testing.T) {
	t.Parallel()
	w := broken(t)
	b := newBrowser(t, w.base)
	b.scripts(false)
	for _, path := range w.paths() {
		b.open(path)
		if lead, err := run(b, chromedp.Text(chromedp.CSS(`#lead`))); err != nil || strings.TrimSpace(lead) == "" {
			t.Errorf("%s: no lead: %v", path, err)
		}
		if command, err := run(b, chromedp.Text(chromedp.CSS(`.same code`))); err != nil || !strings.HasPrefix(command, "relay ") {
			t.Errorf("%s: no command but %q: %v", path, command, err)
		}
	}
	// The forms and the links work without JavaScript.
	b.open("/resources")
	b.do("search", chromedp.SetValue(chromedp.CSS(`#q`), "bank"), chromedp.Submit(chromedp.CSS(`form.search`)), chromedp.WaitVisible(chromedp.CSS(`#list tbody`)))
	rows, err := run(b, chromedp.Text(chromedp.CSS(`#list tbody`)))
	if err != nil || !strings.Contains(rows, "payments/bank") || strings.Contains(rows, "lab-one") {
		t.Errorf("search without JavaScript: %v\n%s", err, rows)
	}
}

func TestTextOfUpstreamsStaysText(t *testing.T) {
	t.Parallel()
	w := calm(t)
	const bad = `"<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202Egnp.exe\u2066"`
	w.write("west/bad.yaml", serviceEntry("evil", "evil", "evil.example", bad))
	w.write("west/broken.yaml", strings.Replace(serviceEntry("evil", "broken", "x", bad), "resolution: DNS", `resolution: "<b>bold</b>\u202E"`, 1))
	w.await("the bad resource", func() bool {
		return strings.Contains(w.get("/debug/configz?kind=se&namespace=evil"), "evil.example") && strings.Contains(w.get("/debug/upstreams"), "bold")
	})
	b := newBrowser(t, w.base)
	for _, path := range []string{"/", "/upstreams/west", "/resources?q=evil", "/resource?kind=se&namespace=evil&name=evil", "/events", "/resources?q=%3Cscript%3Ealert(1)%3C/script%3E%E2%80%AE", "/upstreams/%3Cscript%3E"} {
		b.open(path)
		b.blameless(path)
		if title := ask[string](b, `document.title`); title == "owned" {
			t.Errorf("%s: a script of an upstream ran", path)
		}
		if n := ask[int](b, `document.querySelectorAll('main script, main img, main b').length`); n != 0 {
			t.Errorf("%s: %d elements of an upstream", path, n)
		}
		if ask[bool](b, `/[\u202A-\u202E\u2066-\u2069\u200B-\u200F]/.test(document.documentElement.outerHTML)`) {
			t.Errorf("%s: characters that turn text around are in it", path)
		}
	}
	b.open("/resource?kind=se&namespace=evil&name=evil")
	b.wants("resource", "<script>document.title=", `\u202e`)
}

func TestKeysLeadToEveryPage(t *testing.T) {
	t.Parallel()
	w := calm(t)
	b := newBrowser(t, w.base)
	b.open("/resources")
	b.keys("/")
	b.await(`document.activeElement.id === 'q'`)
	b.do("leave the field", chromedp.Blur(chromedp.CSS(`#q`)))
	b.keys("?")
	b.await(`document.getElementById('keys').open`)
	b.keys("\u001b")
	b.await(`!document.getElementById('keys').open`)
	for key, path := range map[string]string{"o": "/ui/", "u": "/ui/upstreams", "c": "/ui/clients", "s": "/ui/services", "r": "/ui/resources", "t": "/ui/events", "x": "/ui/conflicts"} {
		b.goes(key, path)
	}
	// The first Tab offers to skip the navigation.
	b.keys("\t")
	if got := ask[string](b, `document.activeElement.textContent`); got != "Skip to the content" {
		t.Errorf("the first tab leads to %q", got)
	}
	b.keys("\r")
	b.await(`location.hash === '#main'`)
}

// TestTabLeadsToAllThatCanBeUsed on a page with a form, and on one with a graph.
func TestTabLeadsToAllThatCanBeUsed(t *testing.T) {
	t.Parallel()
	w := broken(t)
	b := newBrowser(t, w.base)
	for path, fewest := range map[string]int{"/": 20, "/resources?q=bank": 15} {
		b.open(path)
		b.await(`document.getElementById('live').className === 'ok'`)
		if n := b.walk(path); n < fewest {
			t.Errorf("%s: only %d things can be used", path, n)
		}
	}
}

func TestARenewalKeepsTheFocusAndWhatIsTyped(t *testing.T) {
	t.Parallel()
	w := calm(t)
	b := newBrowser(t, w.base)
	b.open("/resources?namespace=late")
	b.await(`document.getElementById('live').className === 'ok'`)
	b.do("look for something", chromedp.Focus(chromedp.CSS(`#q`)))
	b.keys("new")
	b.await(`location.search.includes('q=new')`)
	w.write("west/late.yaml", serviceEntry("late", "newcomer", "late.example", ""))
	b.await(`document.querySelector('#list tbody') && document.querySelector('#list tbody').innerText.includes('late/newcomer')`)
	if got := ask[string](b, `document.activeElement.id + ' ' + document.activeElement.value`); got != "q new" {
		t.Errorf("the focus and the text are %q", got)
	}
	b.blameless("after a renewal")
}

// TestFoundClustersAreOnThePage: two of three clusters are gone together, and held.
func TestFoundClustersAreOnThePage(t *testing.T) {
	t.Parallel()
	w := newFleet(t)
	b := newBrowser(t, w.base)
	b.theme("light")
	b.open("/upstreams")
	b.wants("clusters", "Found clusters", "fleet: 3 clusters from ", "held", "found", "relay release cluster/fleet", "bad in ", "not followed")
	b.blameless("clusters")
	b.accessible("light clusters")
	b.fits("clusters")
	b.zoom(2)
	b.fits("zoomed clusters")
	b.zoom(1)
	b.theme("dark")
	b.readable("dark clusters")
	b.do("look at a cluster", chromedp.Click(chromedp.CSS(`#clusters tbody tr:last-child th a`)), chromedp.WaitVisible(chromedp.CSS(`#kinds`)))
	b.wants("its upstream", "Upstream east")
	b.scripts(false)
	b.open("/upstreams")
	if text, err := run(b, chromedp.Text(chromedp.CSS(`#decide`))); err != nil || !strings.Contains(text, "relay release cluster/fleet") {
		t.Errorf("without JavaScript: %v\n%s", err, text)
	}
}
