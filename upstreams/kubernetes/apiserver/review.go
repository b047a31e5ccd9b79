package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"meshrelay/internal/bearer"
)

// maxReview bounds the answer to a TokenReview, in bytes.
const maxReview = 256 << 10

// Reviewer asks an API server who sent a token. It implements bearer.Reviewer.
type Reviewer struct{ *Client }

// NewReviewer returns a Reviewer that has read no credentials yet. agent is its User-Agent.
func NewReviewer(c *Credentials, agent string) Reviewer { return Reviewer{NewClient(c, agent)} }

// tokenReview is a TokenReview of authentication.k8s.io/v1, with the fields that are needed.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
	Status *reviewStatus `json:"status,omitempty"`
}

type reviewStatus struct {
	Authenticated bool `json:"authenticated"`
	User          struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"user"`
	Audiences []string `json:"audiences"`
}

// Review implements bearer.Reviewer.
func (r Reviewer) Review(ctx context.Context, token string, audiences []string) (bearer.Review, error) {
	ask := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	ask.Spec.Token, ask.Spec.Audiences = token, audiences
	text, err := json.Marshal(ask)
	if err != nil {
		return bearer.Review{}, err
	}
	const path = "/apis/authentication.k8s.io/v1/tokenreviews"
	resp, err := r.Current().send(ctx, http.MethodPost, path, nil, AcceptJSON, text)
	if err != nil {
		if strings.Contains(err.Error(), token) {
			err = errors.New("the server answers with an error")
		}
		return bearer.Review{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReview+1))
	var got tokenReview
	switch {
	case err != nil:
		return bearer.Review{}, err
	case len(body) > maxReview:
		return bearer.Review{}, fmt.Errorf("the answer is larger than %d KiB", maxReview>>10)
	case json.Unmarshal(body, &got) != nil || got.Kind != ask.Kind || got.Status == nil:
		return bearer.Review{}, errors.New("the answer is no TokenReview with a status")
	}
	s := got.Status
	return bearer.Review{Authenticated: s.Authenticated, User: s.User.Username, Groups: s.User.Groups, Audiences: s.Audiences}, nil
}
