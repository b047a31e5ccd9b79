package xds

import (
	"crypto/x509"
	"errors"

	"meshrelay/adsclient"
	"meshrelay/internal/identity"
	"meshrelay/trouble"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// met implements adsclient.Config.Met.
func (s *Source) met(p adsclient.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.st.MayWait = ""
	if p.Holds {
		s.st.MayWait = upstreams.MayWaitHolds
	}
}

// followPeer updates MayWait to the state of the connection.
func (s *Source) followPeer(state adsclient.State) {
	switch {
	case state.Phase == adsclient.Streaming: // met has set it for this stream
	case state.Phase == adsclient.Connecting && s.sameName(): // stays until the server answers
	case state.Phase != adsclient.Connecting && state.Phase != adsclient.Connected && errors.As(state.Err, new(*adsclient.SameNameError)):
		s.st.MayWait = upstreams.MayWaitSameName
	default:
		s.st.MayWait = ""
	}
}

// sameName reports whether the server is a relay with the name of this one.
func (s *Source) sameName() bool { return s.st.MayWait == upstreams.MayWaitSameName }

// HandleState implements adsclient.Handler.
func (s *Source) HandleState(state adsclient.State) {
	s.telling.Lock()
	defer s.telling.Unlock()
	if e := s.enter(state, s.feed.Synced()); e != nil {
		s.feed.Tell(e)
	}
}

// enter takes over the state of the connection. It returns what the feed is to be told, or nil. The caller holds telling.
func (s *Source) enter(state adsclient.State, synced bool) intake.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.st
	st.Address = state.Address
	s.followPeer(state)
	switch state.Phase {
	case adsclient.Connecting:
		if st.State != upstreams.StateDenied && !synced && st.LastError == "" { // else keep the last state until there is a better one
			st.Enter(upstreams.StateConnecting)
		}
	case adsclient.Streaming:
		return s.openStream(state, synced)
	case adsclient.Connected:
		s.relay, s.server = state.Relay, identitiesOf(state.Server)
		s.log.Info("upstream answers", "address", state.Address, "protocol", state.Protocol, "relay", state.Relay)
		if kept := s.token.Kept(); kept != "" {
			s.log.Warn("the new token is not used", "err", kept)
		}
		st.LastError = ""
		clear(s.complained)
		if synced {
			st.Enter(upstreams.StateSynced)
		} else {
			st.Enter(upstreams.StateSyncing)
		}
	case adsclient.Disconnected, adsclient.Denied:
		return s.lose(state)
	}
	return nil
}

// openStream begins a stream. A server that denies the relay opens one, too.
func (s *Source) openStream(state adsclient.State, synced bool) intake.Event {
	st := &s.st
	s.types, s.relay, s.server = subscriptions(s.cfg)(state.Relay), state.Relay, nil
	s.told, s.untold = trouble.Report{}, ""
	s.silent = nil // a new stream answers everything
	st.Protocol = string(state.Protocol)
	scopes := make([]records.Scope, 0, len(s.types))
	for _, url := range s.types {
		if scope, err := records.TypeScope(url); err == nil {
			scopes = append(scopes, scope)
		}
	}
	if !synced && st.State != upstreams.StateDenied && !s.sameName() {
		s.st.Enter(upstreams.StateSyncing)
	}
	if s.opened++; s.opened > 1 {
		st.Reconnects++
	}
	s.log.Debug("stream open", "address", state.Address, "protocol", state.Protocol, "relay", state.Relay)
	return intake.Opened{Scopes: scopes, Address: state.Address}
}

// maxIdentities bounds the identities of a server.
const maxIdentities = 64

// identitiesOf returns the identities in a verified certificate. One with a wrong SPIFFE ID, and nil, have none.
func identitiesOf(certificate *x509.Certificate) []string {
	if certificate == nil {
		return nil
	}
	id, names, err := identity.Of(certificate)
	switch {
	case err != nil:
		return nil
	case !id.IsZero():
		names = append([]string{id.String()}, names...)
	}
	return names[:min(len(names), maxIdentities)]
}

func (s *Source) lose(state adsclient.State) intake.Event {
	st, next := &s.st, upstreams.StateDisconnected
	switch {
	case state.Phase == adsclient.Denied:
		next = upstreams.StateDenied
	case s.sameName():
		next = upstreams.StateFailed
	case s.opened == 0:
		next = upstreams.StateConnecting
	}
	if state.Err != nil {
		text := state.Err.Error()
		switch {
		case errors.As(state.Err, new(*adsclient.DeltaError)):
			s.log.Warn("delta left for SotW", "address", state.Address, "err", state.Err)
		case state.Answered && state.Phase == adsclient.Disconnected:
			s.log.Info("stream ended, reconnecting", "address", state.Address, "err", state.Err)
		case s.complained[state.Address] == text: // already logged
		case s.sameName():
			s.log.Error("upstream has this relay's own name", "address", state.Address, "err", state.Err)
		default:
			s.log.Warn("upstream not reachable", "address", state.Address, "err", state.Err)
		}
		st.LastError, s.complained[state.Address] = text, text
	}
	st.Protocol = ""
	s.told, s.untold = trouble.Report{}, "" // nobody knows whether it is still so
	closed := intake.Closed{Denied: next == upstreams.StateDenied, Failed: next == upstreams.StateFailed}
	if state.Err != nil {
		closed.Reason = state.Err.Error()
	}
	st.Enter(next)
	return closed
}
