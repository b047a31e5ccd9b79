package fakekube

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// issue answers a TokenRequest with a JWT that nobody has signed. Its jti is the number of tokens that the server has
// issued.
func (s *Server) issue(w http.ResponseWriter, r *http.Request, p place) {
	var request struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Spec       map[string]any `json:"spec"`
		Status     map[string]any `json:"status"`
	}
	err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxWrite)).Decode(&request)
	seconds, _ := request.Spec["expirationSeconds"].(float64)
	if err != nil || request.APIVersion != "authentication.k8s.io/v1" || request.Kind != "TokenRequest" || seconds < 600 {
		Fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	s.Lock()
	defer s.Unlock()
	if s.TokenSeconds > 0 {
		seconds = float64(s.TokenSeconds)
	}
	s.issued++
	now := time.Now()
	end := now.Add(time.Duration(seconds) * time.Second)
	claims, _ := json.Marshal(map[string]any{
		"iss": "fakekube", "sub": "system:serviceaccount:" + p.namespace + ":" + p.name, "aud": request.Spec["audiences"],
		"iat": now.Unix(), "exp": end.Unix(), "jti": fmt.Sprint(s.issued),
	})
	part := base64.RawURLEncoding.EncodeToString
	request.Spec["expirationSeconds"] = int(seconds)
	request.Status = map[string]any{"token": part([]byte("{}")) + "." + part(claims) + ".", "expirationTimestamp": end.UTC().Format(time.RFC3339)}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(request) // the client may be gone
}
