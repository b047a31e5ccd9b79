package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/upstreams/intake"
)

// remember notes which cluster to mirror: that of the config, or else that of the last run.
func (s *Source) remember(before string) {
	s.identifying.Lock()
	defer s.identifying.Unlock()
	if s.identity = cmp.Or(s.section.ClusterUID, before); s.identity != before {
		s.feed.Tell(intake.Identified{Identity: s.identity})
	}
}

// verify returns a connection to the server of the cluster that is mirrored, or an error. It asks
// which cluster it is where that may have changed. All that could bring something goes over
// connections that it has returned.
func (s *Source) verify(ctx context.Context) (*connection, error) {
	s.identifying.Lock()
	defer s.identifying.Unlock()
	c, breaks := s.client.current(), s.breaks.Load()
	if c == s.verified && breaks == s.unbroken && time.Since(s.verifiedAt) < s.pace.verified {
		return c, nil
	}
	if c == s.unverified && time.Since(s.unverifiedAt) < s.pace.retry {
		return nil, s.unverifiedErr // all targets wait for one answer, not one after the other for its own
	}
	s.verifiedAt = time.Time{}
	id, err := c.identity(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.unverified = nil
	switch {
	case s.identity == "" && (err == nil && id == "" || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		// The server does not tell, so nobody can know.
	case err != nil:
		switch err = s.refused(err); {
		case apierrors.IsForbidden(err):
			err = fmt.Errorf("which cluster this is: %w: let it get the namespace kube-system", err)
		case errors.As(err, new(*url.Error)), apierrors.IsUnauthorized(err): // it is told what is wrong
		default:
			err = fmt.Errorf("which cluster this is: %w", err)
		}
		s.unverified, s.unverifiedAt, s.unverifiedErr = c, time.Now(), err
		return nil, err
	case s.identity == "":
		s.identity = id
		s.feed.Tell(intake.Identified{Identity: id})
	case id != s.identity:
		err := otherCluster(s.identity, id)
		s.trouble(troubleCluster, err)
		return nil, err
	}
	s.verified, s.verifiedAt, s.unbroken = c, time.Now(), breaks
	s.trouble(troubleCluster, nil)
	s.identified(s.identity)
	return c, nil
}

var errOtherCluster = errors.New("this is another cluster")

// otherCluster is the error of a server whose cluster is not the one that was mirrored.
func otherCluster(was, is string) error {
	return fmt.Errorf("%w: its kube-system has the uid %s, and that of what is mirrored is %s: correct the kubeconfig, or set clusterUID: %s to mirror it in place of the other", errOtherCluster, is, was, is)
}
