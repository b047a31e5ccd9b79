package uitest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

//go:embed axe/axe.min.js
var axe string

// watch records what a page must not do.
const watch = `window.problems = [];
addEventListener('securitypolicyviolation', e => problems.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));
addEventListener('error', e => problems.push('error: ' + e.message));
const noted = console.error;
console.error = (...all) => { problems.push('console: ' + all.join(' ')); noted(...all); };
addEventListener('unhandledrejection', e => problems.push('rejection: ' + e.reason));`

// The size of the window.
const width, height = 1200, 860

// chromium returns the context of the browser. It starts it when it is called first, and TestMain ends it.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("%w: install it as root with: apt-get install chromium (make ui-test does)", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(width, height), chromedp.UserDataDir(filepath.Join(home, "chromium")), chromedp.Flag("disable-dev-shm-usage", true))
	allocated, cancelAllocated := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	endLater(func() { cancel(); cancelAllocated() })
	return ctx, chromedp.Do(ctx)
})

// browser is one tab, which shares nothing with others.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string
}

// newBrowser opens a tab.
func newBrowser(t *testing.T, base string) *browser {
	t.Helper()
	whole, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(whole, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, base: base}
	_, err = chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watch})
	if err == nil { // each tab has the focus, whichever others there are
		_, err = chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs an action, for limit at most.
func run[T any](b *browser, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// do runs actions.
func (b *browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, action := range actions {
		if _, err := run(b, action); err != nil {
			b.t.Fatalf("%s: %v\n%s", what, err, b.glance())
		}
	}
}

// glance returns the text of the page, for the message of a failure.
func (b *browser) glance() string {
	text, err := run(b, chromedp.Evaluate[string](`document.body ? document.body.innerText : ''`))
	if err != nil {
		return err.Error()
	}
	return text[:min(len(text), 3000)]
}

func (b *browser) open(path string) {
	b.t.Helper()
	b.do("open "+path, chromedp.Navigate(b.base+path))
}

// ask evaluates an expression in the page.
func ask[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until an expression is true, also on the next page.
func (b *browser) await(expression string) {
	b.t.Helper()
	until(b.t, expression, func() bool {
		is, _ := run(b, chromedp.Evaluate[bool](`Boolean(`+expression+`)`)) // it fails between two pages
		return is
	}, b.glance)
}

// text returns the visible text of the page.
func (b *browser) text() string { b.t.Helper(); return ask[string](b, `document.body.innerText`) }

// wants checks that the page has some texts.
func (b *browser) wants(where string, texts ...string) {
	b.t.Helper()
	got := b.text()
	for _, want := range texts {
		if !strings.Contains(got, want) {
			b.t.Errorf("%s: want %q in\n%s", where, want, got)
		}
	}
}

// theme makes the browser prefer dark or light.
func (b *browser) theme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// zoom enlarges pages by a factor: the window has less room, as when a user zooms.
func (b *browser) zoom(times int64) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width / times, Height: height / times, DeviceScaleFactor: float64(times),
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// fits checks that the page needs no horizontal scrolling.
func (b *browser) fits(where string) {
	b.t.Helper()
	const wide = `(() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room) return '';
  const over = [...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > room);
  return document.documentElement.scrollWidth + ' of ' + room + ' pixels: ' + over.slice(0, 3).map(e => e.outerHTML.slice(0, 100)).join(' | ');
})()`
	if found := ask[string](b, wide); found != "" {
		b.t.Errorf("%s: it is wider than the window: %s", where, found)
	}
}

// walk presses Tab to the end of the page. It checks that Tab reaches each usable element, in the order of the page,
// and that the focus is visible. It returns the number of elements.
func (b *browser) walk(where string) int {
	b.t.Helper()
	// The visible and usable elements, in the order of the page.
	const step = `(() => {
  const all = [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex="0"]')]
    .filter(e => !e.disabled && e.type !== 'hidden' && e.getClientRects().length > 0);
  const now = document.activeElement, style = getComputedStyle(now);
  return {
    at: all.indexOf(now), of: all.length, what: now.outerHTML.slice(0, 120),
    shown: now.matches(':focus-visible') && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
  };
})()`
	type place struct {
		At    int    `json:"at"`
		Of    int    `json:"of"`
		What  string `json:"what"`
		Shown bool   `json:"shown"`
	}
	for i := 0; ; i++ {
		b.keys("\t")
		p := ask[place](b, step)
		switch {
		case p.At != i:
			b.t.Fatalf("%s: tab %d of %d leads to number %d, %s", where, i+1, p.Of, p.At+1, p.What)
		case !p.Shown:
			b.t.Errorf("%s: nothing shows that the focus is on %s", where, p.What)
		}
		if i+1 == p.Of {
			return p.Of
		}
	}
}

// scripts turns JavaScript on or off.
func (b *browser) scripts(on bool) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on}); err != nil {
		b.t.Fatal(err)
	}
}

// keys types keys into the page.
func (b *browser) keys(keys string) {
	b.t.Helper()
	b.do("type "+keys, chromedp.KeyEvent(keys))
}

// goes presses g and a key at once, however slow the machine is: the page takes them as two things after a while.
// It returns in the new document: a key that is pressed in the old one, while the new one comes, leads nowhere.
func (b *browser) goes(key, path string) {
	b.t.Helper()
	ask[bool](b, `window.old = [...'g`+key+`'].every(key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true })))`)
	b.await(`!window.old && location.pathname === '` + path + `' && document.readyState === 'complete'`)
}

// blameless checks that the page caused no violation of its policy, no error, and no request to another origin.
func (b *browser) blameless(where string) {
	b.t.Helper()
	for _, problem := range ask[[]string](b, `window.problems`) {
		b.t.Errorf("%s: %s", where, problem)
	}
	foreign := `performance.getEntriesByType('resource').map(e => e.name).filter(n => new URL(n).origin !== location.origin && !n.startsWith('data:'))`
	for _, name := range ask[[]string](b, foreign) {
		b.t.Errorf("%s: request to another origin: %s", where, name)
	}
}

// accessible checks the page with all rules of axe, or with some.
func (b *browser) accessible(where string, rules ...string) {
	b.t.Helper()
	if !ask[bool](b, `'axe' in window`) {
		ask[bool](b, axe+"\n;true")
	}
	options := map[string][]string{"resultTypes": {"violations"}}
	if len(rules) > 0 {
		options["runOnly"] = rules
	}
	text, err := json.Marshal(options)
	if err != nil {
		b.t.Fatal(err)
	}
	const found = `.then(r => r.violations.map(v => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + ' ' + n.failureSummary).join(' | ')))`
	for _, finding := range ask[[]string](b, `axe.run(`+string(text)+`)`+found) {
		b.t.Errorf("%s: %s", where, finding)
	}
}

// readable checks the colours of the page: all that a theme changes.
func (b *browser) readable(where string) {
	b.t.Helper()
	b.accessible(where, "color-contrast", "link-in-text-block")
}
