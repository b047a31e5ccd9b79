package events

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
)

// Type is the type of an event: one word, the same in commands, documents and the config file.
type Type string

// The types of events.
const (
	// Changed: the served resources of an upstream changed.
	Changed Type = "changed"
	// Synced: an upstream has given all its content for the first time. Lost: the contact ended.
	// Regained: it began again. Moved: the upstream is read from another address.
	Synced   Type = "synced"
	Lost     Type = "lost"
	Regained Type = "regained"
	Moved    Type = "moved"
	// NotOffered: other types than before are not offered by an upstream.
	NotOffered Type = "not-offered"
	// Denied: an upstream refuses the relay's identity. Failed: it can not be used as configured.
	Denied Type = "denied"
	Failed Type = "failed"
	// Stale: an upstream is out of contact for too long. Expired: resources are therefore not
	// served.
	Stale   Type = "stale"
	Expired Type = "expired"
	// Refused: content of an upstream is wrong. OverLimit: an upstream has more than it may.
	Refused   Type = "refused"
	OverLimit Type = "over-limit"
	// Restored: an upstream is served from disk until it has synced.
	Restored Type = "restored"
	// Held: the guard holds deletions. A hold ends when the upstream has the resources again
	// (Returned), or when an operator (Released) or the guard (CarriedOut) carries it out.
	Held       Type = "held"
	Returned   Type = "returned"
	Released   Type = "released"
	CarriedOut Type = "carried-out"
	// Frozen, Unfrozen, RolledBack: orders of operators.
	Frozen     Type = "frozen"
	Unfrozen   Type = "unfrozen"
	RolledBack Type = "rolled-back"
	// Ordered: an order of an operator over the socket, carried out or refused.
	Ordered Type = "ordered"
	// Added, Altered, Dropped: a config adds an upstream, changes its source, or removes it.
	Added   Type = "added"
	Altered Type = "altered"
	Dropped Type = "dropped"
	// Config: a config file was loaded. ConfigRefused: it could not be.
	Config        Type = "config"
	ConfigRefused Type = "config-refused"
	// Connected, Gone: a client connects or leaves. NACK: it rejects a response. TurnedAway: it is
	// refused.
	Connected  Type = "connected"
	Gone       Type = "gone"
	NACK       Type = "nack"
	TurnedAway Type = "turned-away"
	// Started, Serving, Ended: stages of the relay's process.
	Started Type = "started"
	Serving Type = "serving"
	Ended   Type = "ended"
)

// Types returns all types, in the order of the documents.
func Types() []Type {
	return []Type{
		Changed, Synced, Lost, Regained, Moved, NotOffered, Denied, Failed, Stale, Expired, Refused, OverLimit, Restored,
		Held, Returned, Released, CarriedOut, Frozen, Unfrozen, RolledBack, Ordered, Added, Altered, Dropped,
		Config, ConfigRefused, Connected, Gone, NACK, TurnedAway, Started, Serving, Ended,
	}
}

// ParseTypes parses types that are separated by commas.
func ParseTypes(text string) (types []Type, err error) {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		if !slices.Contains(Types(), Type(word)) {
			return nil, fmt.Errorf("unknown event type %.32q: want %s", word, words(Types()))
		}
		types = append(types, Type(word))
	}
	return types, nil
}

func words(types []Type) string {
	out := make([]string, len(types))
	for i, t := range types {
		out[i] = string(t)
	}
	return strings.Join(out, ", ")
}

// By is the cause of an event.
type By string

// The causes.
const (
	ByUpstream  By = "upstream"
	ByOperator  By = "operator"
	ByConfig    By = "config"
	ByGuard     By = "guard"
	ByStaleness By = "staleness"
	ByClient    By = "client"
	ByRelay     By = "relay"
)

// Operator is a person who gave an order over the socket.
type Operator struct {
	UID int `json:"uid"`
	// User is the name of the UID on the relay's host, empty when it has none. A refused order that did not come
	// over the socket has the UID -1, and its address here.
	User string `json:"user,omitempty"`
}

// String returns the user, or the UID.
func (o Operator) String() string {
	return cmp.Or(o.User, fmt.Sprintf("uid %d", o.UID))
}

// Event is one line of the journal. It never changes after a Journal has returned it.
type Event struct {
	// Seq rises with each event, also over restarts. It may skip numbers.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Type Type      `json:"type"`
	// Upstream and Client name the subject of the event, empty for none.
	Upstream string `json:"upstream,omitempty"`
	Client   string `json:"client,omitempty"`
	// Tool is set if the client calls itself a command of the relay. It is no proof: any client can do that.
	Tool bool `json:"tool,omitempty"`
	By   By   `json:"by,omitempty"`
	// Operator is who gave an order: only an Ordered has it.
	Operator *Operator `json:"operator,omitempty"`
	// Text is a short sentence, without Upstream and Client.
	Text string `json:"text,omitempty"`
	// Before and After are what an order has changed, as it was and as it is.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Reason is an operator's reason, an error, or the rule of a guard.
	Reason string `json:"reason,omitempty"`
	// Hold is the ID of a hold, as "relay release --hold" takes it.
	Hold string `json:"hold,omitempty"`
	// Command is a command that shows more, or acts.
	Command string `json:"command,omitempty"`
	// Count is the number of events that were merged into this one, since Since. It is zero for a
	// single event.
	Count int       `json:"count,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Resources are the subject of the event.
	Resources *Resources `json:"resources,omitempty"`
	// Stages tells how far a change has got. If changes were merged, it is about the first one.
	Stages *Stages `json:"stages,omitempty"`
}

// Stages are the times at which a change reached each stage, zero if it has not.
type Stages struct {
	// Received is when the upstream sent it, Merged when it was in the merged view.
	Received time.Time `json:"received,omitzero"`
	Merged   time.Time `json:"merged,omitzero"`
	// Pushed is when responses with it could be made.
	Pushed time.Time `json:"pushed,omitzero"`
	// Half and All are when half of the clients, and all, had acknowledged everything that they
	// were sent.
	Half time.Time `json:"half,omitzero"`
	All  time.Time `json:"all,omitzero"`
	// Clients counts the clients that the change was sent to. Acknowledged counts those that had
	// acknowledged it at the last look.
	Clients      int `json:"clients,omitempty"`
	Acknowledged int `json:"acknowledged,omitempty"`
}

const (
	// maxNames bounds the named resources of an event, maxGroups the counts by kind and namespace.
	maxNames  = 20
	maxGroups = 16
	// maxText bounds each text of an event, and maxName a name or a namespace, in bytes.
	maxText = 512
	maxName = 512
)

// Mark is the change of a resource: added, changed or removed.
type Mark byte

// The marks.
const (
	Addition     Mark = '+'
	Modification Mark = '~'
	Removal      Mark = '-'
)

// Name is a resource with its Mark. Its text is "+group/Kind namespace/name".
type Name struct {
	Mark Mark
	Key  mirror.Key
}

// String returns the text of a name.
func (n Name) String() string { return string(n.Mark) + n.Key.String() }

// MarshalText implements encoding.TextMarshaler.
func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Name) UnmarshalText(b []byte) error {
	kind, name, ok := strings.Cut(string(b), " ")
	if !ok || len(kind) < 2 || !strings.ContainsRune("+~-", rune(kind[0])) {
		return fmt.Errorf("%.64q: want +group/Kind namespace/name", b)
	}
	n.Mark, n.Key = Mark(kind[0]), mirror.Key{Name: name}
	if err := n.Key.Kind.UnmarshalText([]byte(kind[1:])); err != nil {
		return err
	}
	if namespace, short, ok := strings.Cut(name, "/"); ok {
		n.Key.Namespace, n.Key.Name = namespace, short
	}
	return nil
}

// Group counts the changed resources of a kind in a namespace.
type Group struct {
	Kind      mirror.Kind `json:"kind"` // "group/Kind"
	Namespace string      `json:"namespace,omitempty"`
	Added     int         `json:"added,omitempty"`
	Changed   int         `json:"changed,omitempty"`
	Removed   int         `json:"removed,omitempty"`
}

// Resources are the changed resources of an event.
type Resources struct {
	// Added, Changed and Removed count changes: a resource that changes twice counts twice.
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	// Services counts those of Changed that change more of a service than its endpoints, Endpoints those that do not.
	Services  int `json:"services,omitempty"`
	Endpoints int `json:"endpoints,omitempty"`
	// Names are examples, each once.
	Names []Name `json:"names,omitempty"`
	// Groups counts by kind and namespace. Elsewhere counts the resources in no group, because there were too
	// many groups, or because the namespace is too long.
	Groups    []Group `json:"groups,omitempty"`
	Elsewhere int     `json:"elsewhere,omitempty"`
}

// Total returns the number of changes.
func (r *Resources) Total() int { return r.Added + r.Changed + r.Removed }

// String returns the counts, as in "3 added, 2 changed (1 service, 1 endpoint)".
func (r *Resources) String() string {
	changed := "changed"
	if of := list(count{r.Services, "service"}, count{r.Endpoints, "endpoint"}); of != "" {
		changed += " (" + of + ")"
	}
	return list(count{r.Added, "added"}, count{r.Changed, changed}, count{r.Removed, "removed"})
}

type count struct {
	n    int
	what string
}

func list(counts ...count) string {
	var parts []string
	for _, one := range counts {
		if one.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	return strings.Join(parts, ", ")
}

// Note counts one changed resource.
func (r *Resources) Note(m Mark, key mirror.Key) {
	one := Group{Kind: key.Kind, Namespace: key.Namespace}
	switch m {
	case Addition:
		one.Added = 1
	case Modification:
		one.Changed = 1
	default:
		one.Removed = 1
	}
	r.name(Name{m, key})
	r.sum(one.Added, one.Changed, one.Removed)
	r.place(one)
}

func (r *Resources) name(n Name) {
	if len(r.Names) < maxNames && len(n.Key.Name)+len(n.Key.Namespace) <= maxName && !slices.Contains(r.Names, n) {
		r.Names = append(r.Names, n)
	}
}

// sum adds to the total counts.
func (r *Resources) sum(added, changed, removed int) {
	r.Added, r.Changed, r.Removed = r.Added+added, r.Changed+changed, r.Removed+removed
}

// place adds to the counts of a group, or to Elsewhere.
func (r *Resources) place(g Group) {
	for i := len(r.Groups) - 1; i >= 0; i-- { // neighbours are often in one group
		if mine := &r.Groups[i]; mine.Namespace == g.Namespace && mine.Kind == g.Kind {
			mine.Added, mine.Changed, mine.Removed = mine.Added+g.Added, mine.Changed+g.Changed, mine.Removed+g.Removed
			return
		}
	}
	if len(r.Groups) < maxGroups && len(g.Namespace) <= maxName {
		r.Groups = append(r.Groups, g)
	} else {
		r.Elsewhere += g.Added + g.Changed + g.Removed
	}
}

// add adds the resources of other.
func (r *Resources) add(other *Resources) {
	r.sum(other.Added, other.Changed, other.Removed)
	r.Services, r.Endpoints = r.Services+other.Services, r.Endpoints+other.Endpoints
	for _, n := range other.Names {
		r.name(n)
	}
	for _, g := range other.Groups {
		r.place(g)
	}
	r.Elsewhere += other.Elsewhere
}

// size returns the approximate memory of an event, in bytes.
func (e *Event) size() int {
	const fixed, each = 320, 96
	n := fixed + len(e.Upstream) + len(e.Client) + len(e.Text) + len(e.Before) + len(e.After) + len(e.Reason) + len(e.Command)
	if r := e.Resources; r != nil {
		n += each
		for _, one := range r.Names {
			n += each + len(one.Key.Name) + len(one.Key.Namespace)
		}
		for _, g := range r.Groups {
			n += each + 32 + len(g.Namespace)
		}
	}
	if e.Stages != nil {
		n += 2 * each
	}
	return n
}
