package subscription

import "meshrelay/mirror"

// lookup finds a type for each API version of ServiceEntries, and a type that has as many
// versions as clients make up.
func lookup(typeURL string) (Type, bool) {
	kind, _, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return Type{}, false
	}
	known := kind.Kind == "ServiceEntry" || kind.Kind == "DestinationRule"
	t := Type{Group: kind.Group, Kind: kind.Kind, Fixed: known}
	if known {
		t.Order = 1 + len(kind.Kind) - len("ServiceEntry")
	}
	return t, true
}
