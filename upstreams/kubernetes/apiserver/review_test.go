package apiserver_test

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshrelay/internal/bearer"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

var _ bearer.Reviewer = apiserver.Reviewer{}

// TestATokenReviewIsAskedWithTheRelaysOwnCredentials: errors and answers that are none do not quote the token.
func TestATokenReviewIsAskedWithTheRelaysOwnCredentials(t *testing.T) {
	const token = "a-secret-of-a-client"
	var status, body string
	code := http.StatusCreated
	s := fakekube.New()
	s.Set(func() {
		s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			ask, err := io.ReadAll(r.Body)
			var got struct {
				APIVersion, Kind string
				Spec             struct {
					Token     string
					Audiences []string
				}
			}
			switch {
			case err != nil || json.Unmarshal(ask, &got) != nil:
				t.Error("the request does not decode")
			case r.Method != http.MethodPost || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Header.Get("Authorization") != "Bearer own" || r.Header.Get("Content-Type") != "application/json":
				t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
			case got.APIVersion != "authentication.k8s.io/v1" || got.Kind != "TokenReview" || got.Spec.Token != token || !slices.Equal(got.Spec.Audiences, []string{"relay"}):
				t.Errorf("asked %s", ask)
			}
			w.WriteHeader(code)
			if body == "" {
				body = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":` + status + `}`
			}
			io.WriteString(w, body) //nolint:errcheck // the test would fail
			return true
		}
	})
	path := filepath.Join(t.TempDir(), "config")
	fakekube.WriteKubeconfig(t, path, s.Start(t), "own")
	r := apiserver.NewReviewer(&apiserver.Credentials{Kubeconfig: path}, "meshrelay/test")
	t.Cleanup(r.Close)
	if _, err := r.Review(t.Context(), token, []string{"relay"}); err == nil || !strings.Contains(err.Error(), "no credentials yet") {
		t.Errorf("before the credentials are read: %v", err)
	}
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	status = `{"authenticated":true,"user":{"username":"system:serviceaccount:a:b","groups":["g"]},"audiences":["relay"]}`
	got, err := r.Review(t.Context(), token, []string{"relay"})
	if err != nil || !got.Authenticated || got.User != "system:serviceaccount:a:b" || !slices.Equal(got.Groups, []string{"g"}) || !slices.Equal(got.Audiences, []string{"relay"}) {
		t.Errorf("%+v %v", got, err)
	}
	body, status = "", `{"authenticated":false,"error":"`+token+`"}`
	if got, err = r.Review(t.Context(), token, []string{"relay"}); err != nil || got.Authenticated {
		t.Errorf("%+v %v", got, err)
	}
	for name, tc := range map[string]struct {
		code       int
		body, want string
	}{
		"forbidden":           {http.StatusForbidden, `{"kind":"Status","status":"Failure","code":403,"message":"may not create tokenreviews"}`, "may not create tokenreviews"},
		"an echo":             {http.StatusInternalServerError, "no: " + token, "the server answers with an error"},
		"another object":      {http.StatusCreated, `{"kind":"Pod","status":{"authenticated":true}}`, "no TokenReview with a status"},
		"no status":           {http.StatusCreated, `{"kind":"TokenReview"}`, "no TokenReview with a status"},
		"not JSON":            {http.StatusCreated, token, "no TokenReview with a status"},
		"larger than 256 KiB": {http.StatusCreated, strings.Repeat(" ", 300<<10), "larger than 256 KiB"},
		"a redirect":          {http.StatusFound, "", "the server"},
	} {
		code, body = tc.code, tc.body+" "
		got, err := r.Review(t.Context(), token, []string{"relay"})
		if err == nil || got.Authenticated || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}
