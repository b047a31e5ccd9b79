package ui

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"meshrelay/admin"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
)

// maxParameter bounds a parameter, in bytes.
const maxParameter = 512

// request has the parameters of a request for a page, and data that several parts of the page share.
type request struct {
	path  string // below the path of the pages
	name  string // the last element of the path: an upstream or an event
	query url.Values
	now   time.Time

	version admin.Version
	ready   admin.Readiness
	ups     []upstreams.Status
	head    State
}

func (r *request) get(parameter string) string { return r.query.Get(parameter) }

// offset returns the number of rows before the page, for lists that page by number.
func (r *request) offset() int {
	n, err := strconv.Atoi(r.get("from"))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// with returns the address of the page with another value of a parameter.
func (r *request) with(parameter, value string) string {
	q := url.Values{}
	for k, v := range r.query {
		if k != "from" && k != "after" && k != "before" && v[0] != "" {
			q[k] = v[:1]
		}
	}
	q.Set(parameter, value)
	return r.path + "?" + q.Encode()
}

// search returns the search form of a list.
func (r *request) search(href string, more ...Field) *Search {
	return &Search{Href: href, Fields: append([]Field{{Name: "q", Label: "Search", Value: r.get("q")}}, more...)}
}

// check returns an error if a parameter is wrong.
func (r *request) check() error {
	for _, k := range slices.Sorted(maps.Keys(r.query)) {
		for _, v := range r.query[k] {
			if len(v) > maxParameter || !utf8.ValidString(v) {
				return badRequest("The parameter %.32q is not readable or longer than %d bytes.", k, maxParameter)
			}
		}
	}
	if k := r.get("after"); k != "" {
		if _, ok := parseCursor(k); !ok {
			return badRequest("after is %.64q: want group/Kind/namespace/name, as in the link to the next page.", k)
		}
	}
	return nil
}

func notFound(format string, args ...any) error {
	return admin.Refuse(http.StatusNotFound, format, args...)
}

func badRequest(format string, args ...any) error {
	return admin.Refuse(http.StatusBadRequest, format, args...)
}

// contains reports whether in contains q, ignoring case. It allocates nothing for texts in lower case.
func contains(in, q string) bool { return strings.Contains(strings.ToLower(in), strings.ToLower(q)) }

// named reports whether the search text is in the kind or in "namespace/name" of a resource.
func (r *request) named(kind, namespace, name string) bool {
	q := r.get("q")
	return q == "" || contains(kind, q) || contains(namespace+"/"+name, q)
}

func pathOf(name string) string { return url.PathEscape(name) }

func queryOf(value string) string { return url.QueryEscape(value) }

func resourceHref(kind, namespace, name string) string {
	return "/resource?" + url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}}.Encode()
}

func orDash(s string) string { return cmp.Or(s, "-") }

// word returns s quoted as one word of a shell.
func word(s string) string { return text.Word(cut(s)) }

// countIf returns the number of elements for which holds is true.
func countIf[T any](all []T, holds func(T) bool) (n int) {
	for _, v := range all {
		if holds(v) {
			n++
		}
	}
	return n
}

// falseFirst returns a list with the elements for which holds is false first.
func falseFirst[T any](all []T, holds func(T) bool) []T {
	sorted := slices.DeleteFunc(slices.Clone(all), holds)
	return append(sorted, slices.DeleteFunc(slices.Clone(all), func(v T) bool { return !holds(v) })...)
}

// upstreamField returns the field that selects an upstream.
func (r *request) upstreamField() Field {
	f := Field{Name: "upstream", Label: "Upstream", Value: r.get("upstream")}
	for _, u := range first(r.ups, maxRows) {
		f.Options = append(f.Options, u.Name)
	}
	return f
}
