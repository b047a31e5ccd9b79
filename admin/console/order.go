package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/ui"
	"meshrelay/admin/view"
	"meshrelay/internal/errlist"
	"meshrelay/upstreams/intake"
)

// order carries out the order of a form.
func (c *Console) order(w http.ResponseWriter, r *http.Request, verb string) {
	if err := r.ParseForm(); err != nil {
		c.refuse(w, r, verb, err)
		return
	}
	upstream, o, err := orderOf(r.PostForm, verb)
	if err != nil {
		c.refuse(w, r, verb, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
	defer cancel()
	done, err := c.relay.Order(ctx, upstream, verb, o)
	if err != nil {
		c.refuse(w, r, verb, err)
		return
	}
	title := "Done: " + verb + " " + upstream
	if o.DryRun {
		title = "Dry run, nothing was changed: " + verb + " " + upstream
	}
	text := view.Ordered(done, verb, o)
	c.answer(w, r, &ui.Page{
		Title: title, Lead: ui.State{Level: ui.OK, Text: firstLine(text)}, Command: "relay upstreams " + upstream,
		Sections: []ui.Section{
			{ID: "effect", Title: "Effect", Code: text + "\n"},
			{ID: "next", Text: []ui.State{{Level: ui.None, Text: "Show upstream " + upstream, Href: "/upstreams/" + url.PathEscape(upstream)}}},
		},
	}, http.StatusOK)
}

// orderOf returns the order of a form. The form must have a reason, and the name of the upstream, typed by the user.
func orderOf(form url.Values, verb string) (upstream string, o intake.Order, err error) {
	upstream = form.Get("upstream")
	o = intake.Order{Reason: strings.TrimSpace(form.Get("reason")), DryRun: form.Get("dryRun") == "true"}
	switch {
	case upstream == "":
		return "", o, errors.New("the form names no upstream")
	case form.Get("confirm") != upstream:
		return "", o, fmt.Errorf("not confirmed: type the name of the upstream, %s", upstream)
	case o.Reason == "":
		return "", o, errors.New("missing reason: it is recorded in the journal")
	}
	switch verb {
	case "release":
		if o.Hold = form.Get("hold"); o.Hold == "" {
			err = errors.New("the form names no hold")
		}
	case "rollback":
		if o.To, err = strconv.ParseUint(strings.TrimSpace(form.Get("to")), 10, 64); err != nil {
			err = fmt.Errorf("revision %.32q: want the number of a revision of the history", form.Get("to"))
		}
	case "freeze":
		if text := strings.TrimSpace(form.Get("for")); text != "" {
			if o.For, err = time.ParseDuration(text); err != nil || o.For <= 0 {
				err = fmt.Errorf("freeze for %.32q: want a duration, such as 4h or 90m", text)
			}
		}
	}
	return upstream, o, err
}

// what answers with the changes that a config file would make.
func (c *Console) what(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.refuse(w, r, "plan", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), planTimeout)
	defer cancel()
	text, err := c.plan(ctx, []byte(r.PostForm.Get("config")))
	if err != nil {
		c.refuse(w, r, "plan", err)
		return
	}
	c.answer(w, r, &ui.Page{
		Title: "What would change", Crumbs: []ui.Link{{Text: "What if", Href: "/plan"}}, Command: "relay plan -c new.yaml --diff",
		Lead:     ui.State{Level: ui.None, Text: lastLine(text)},
		Sections: []ui.Section{{ID: "changes", Title: "Changes", Code: ui.Bounded(text, "relay plan -c new.yaml --diff")}},
	}, http.StatusOK)
}

// refuse answers with the mistake in a form, or with the reason why the relay refuses it.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, verb string, err error) {
	code, text := http.StatusUnprocessableEntity, strings.Join(errlist.Lines(err), "\n")
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		text = fmt.Sprintf("the form is larger than %s: use the command in a terminal", view.Bytes(large.Limit))
	}
	var refused *admin.StatusError
	if errors.As(err, &refused) {
		text = refused.Text
	}
	page := &ui.Page{Title: "Nothing was changed", Lead: ui.State{Level: ui.Bad, Text: firstLine(text)}, Command: "relay " + verb + " --help"}
	if text != firstLine(text) {
		page.Sections = []ui.Section{{ID: "why", Title: "Why", Code: ui.Bounded(text, "relay "+verb)}}
	}
	c.answer(w, r, page, code)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
