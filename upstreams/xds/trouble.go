package xds

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshrelay/adsclient"
	"meshrelay/trouble"
	"meshrelay/upstreams/intake"
)

// withTrouble adds the type by which relays tell trouble, for servers that are relays: an istiod does not know it.
func withTrouble(of func(relay bool) []string) func(relay bool) []string {
	return func(relay bool) []string {
		urls := of(relay)
		if relay {
			urls = append(urls, trouble.TypeURL)
		}
		return urls
	}
}

// hear takes what the server tells of its problems. What is wrong with it is refused, and none is shown then. The caller
// holds telling.
func (s *Source) hear(resp *adsclient.Response) error {
	told, err := heard(resp, s.name)
	untold := ""
	if err != nil {
		untold = err.Error()
		err = s.nack("trouble refused", resp.TypeURL, err)
	}
	s.mu.Lock()
	s.told, s.untold = told, untold
	s.mu.Unlock()
	s.feed.Tell(intake.Tick{}) // the status has changed
	return err
}

// heard returns the report in a response.
func heard(resp *adsclient.Response, relay string) (r trouble.Report, err error) {
	if resp.Len() > 1 {
		return r, fmt.Errorf("a response has %d reports of trouble: want one", resp.Len())
	}
	for raw := range resp.Resources(trouble.MaxBytes + 128) {
		var body anypb.Any
		var value wrapperspb.StringValue
		if raw.Any == nil {
			return r, fmt.Errorf("a report of trouble has %d bytes: want at most %d", raw.Size, trouble.MaxBytes)
		}
		if err := proto.Unmarshal(raw.Any, &body); err != nil {
			return r, fmt.Errorf("a report of trouble does not decode: %w", err)
		}
		if err := body.UnmarshalTo(&value); err != nil {
			return r, fmt.Errorf("a report of trouble does not decode: %w", err)
		}
		return trouble.Decode(value.GetValue(), relay)
	}
	return r, nil
}
