package admin

import (
	"net/url"
	"strconv"

	"meshrelay/upstreams/intake"
)

// parameters are those of each order of an upstream, beside reason and dryRun.
var parameters = map[string][]string{
	"freeze":   {},
	"unfreeze": {"force"},
	"release":  {"hold", "only", "all"},
	"rollback": {"to"},
	"resync":   nil,
}

// orderOf parses the query of an order.
func orderOf(verb string, query url.Values) (o intake.Order, err error) {
	if o.DryRun, err = switchOf(query, "dryRun"); err != nil {
		return o, err
	}
	o.Reason = query.Get("reason")
	if err := intake.CheckReason(o.Reason); err != nil {
		return o, badRequestf("%v", err)
	}
	switch verb {
	case "unfreeze":
		o.Force, err = switchOf(query, "force")
	case "release":
		o.Hold = query.Get("hold")
		if o.Only, err = intake.ParseParts(query["only"]); err != nil {
			return o, badRequestf("only: %v", err)
		}
		if o.All, err = switchOf(query, "all"); err == nil && o.Hold == "" && len(o.Only) == 0 && !o.All {
			err = badRequestf("want hold=ID, only=KIND/NAMESPACE or all=true: /held lists the held deletions")
		}
	case "rollback":
		if o.To, err = strconv.ParseUint(query.Get("to"), 10, 64); err != nil || o.To == 0 {
			return o, badRequestf("to is %.32q: want the number of a revision, such as rollback?to=7: /history lists them", query.Get("to"))
		}
	}
	return o, err
}

// switchOf returns a bool parameter. A missing parameter is false.
func switchOf(query url.Values, name string) (bool, error) {
	text := query.Get(name)
	if text == "" && !query.Has(name) {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequestf("%s is %.32q: want true or false", name, text)
	}
	return on, nil
}
