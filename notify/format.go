package notify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
)

const (
	// alertLasts is how long an alert lasts that is neither ended nor renewed, testLasts how long that of a
	// test does.
	alertLasts = time.Hour
	testLasts  = 5 * time.Minute
)

// Message is a notification in the format json.
type Message struct {
	Relay  string `json:"relay"`
	Events []Item `json:"events"`
}

// Item is one event of a Message.
type Item struct {
	events.Event
	// Summary is a sentence for people.
	Summary string `json:"summary"`
	// Commands are the commands to run: the one that shows more first, then those that act.
	Commands []string `json:"commands,omitempty"`
}

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt,omitzero"`
	EndsAt      time.Time         `json:"endsAt"`
}

// payload returns the body of a request.
func payload(r config.Notify, relay string, batch []events.Event, now time.Time) any {
	switch r.Format {
	case config.NotifyAlertmanager:
		return alertsOf(r, relay, batch, now)
	case config.NotifySlack:
		lines := make([]string, 0, len(batch))
		for _, e := range batch {
			line := slackText("*" + summary(relay, e) + "*")
			for _, c := range Commands(e) {
				line += "\n`" + slackText(c) + "`"
			}
			lines = append(lines, line)
		}
		return map[string]string{"text": strings.Join(lines, "\n")}
	}
	m := Message{Relay: relay}
	for _, e := range batch {
		m.Events = append(m.Events, Item{e, summary(relay, e), Commands(e)})
	}
	return m
}

// slackText escapes what has a meaning in messages of Slack.
func slackText(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(s)
}

// summary returns an event as a sentence.
func summary(relay string, e events.Event) string {
	about := ""
	switch {
	case e.Upstream != "":
		about = " upstream " + e.Upstream
	case e.Client != "":
		about = " client " + e.Client
	}
	text := fmt.Sprintf("relay %s:%s %s", relay, about, e.Type)
	if e.Text != "" {
		text += ": " + e.Text
	}
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	if e.Count > 1 {
		text += fmt.Sprintf(" [%d times]", e.Count)
	}
	return text
}

// alertsOf returns alerts. One event may end the alerts of several types: their labels tell which.
func alertsOf(r config.Notify, relay string, batch []events.Event, now time.Time) (out []alert) {
	for _, e := range batch {
		for _, word := range r.On {
			t := events.Type(word)
			a := begun(relay, t, e, now)
			switch {
			case t == e.Type:
			case slices.Contains(ends[t], e.Type):
				a = alert{Labels: labels(relay, t, e), Annotations: map[string]string{"summary": summary(relay, e)}, EndsAt: e.Time}
			default:
				continue
			}
			out = append(out, a)
		}
	}
	return out
}

// begun returns the alert of an event that begins something, as it is sent at a time. It ends by itself,
// some time after it was sent last.
func begun(relay string, t events.Type, e events.Event, now time.Time) alert {
	a := alert{Labels: labels(relay, t, e), Annotations: map[string]string{"summary": summary(relay, e)}, StartsAt: e.Time, EndsAt: now.Add(alertLasts)}
	if t == testType {
		a.Labels["severity"], a.EndsAt = "info", now.Add(testLasts)
	}
	if commands := Commands(e); len(commands) > 0 {
		a.Annotations["commands"] = strings.Join(commands, "\n")
	}
	if e.Hold != "" {
		a.Annotations["hold"] = e.Hold
	}
	return a
}

func labels(relay string, t events.Type, e events.Event) map[string]string {
	out := map[string]string{"alertname": "Relay" + camel(string(t)), "relay": relay, "severity": "warning", "type": string(t)}
	if about := cmp.Or(e.Upstream, e.Client); about != "" {
		out[map[bool]string{true: "upstream", false: "client"}[e.Upstream != ""]] = about
	}
	return out
}

// camel returns "CarriedOut" for "carried-out".
func camel(word string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(word, "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}
