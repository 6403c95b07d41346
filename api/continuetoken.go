package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shepherd-project/shepherd/fsm"
)

// continueVersion is that of the token's format.
const continueVersion = 1

// continueToken says where the next page of a list begins, and in which state.
// On the wire it is opaque: base64url of this in JSON.
type continueToken struct {
	Version   int    `json:"v"`
	Revision  uint64 `json:"rv"` // 0: go on in the newest state
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"name"` // the last object of the page before
}

func (t continueToken) encode() string {
	t.Version = continueVersion
	data, err := json.Marshal(t)
	if err != nil {
		panic("api: encode continue token: " + err.Error()) // never: numbers and strings
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// parseContinue reads a token that this or another replica gave out.
func parseContinue(text string) (continueToken, error) {
	var t continueToken
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err == nil && (t.Version != continueVersion || t.Name == "") {
		err = errors.New("unknown format")
	}
	if err != nil {
		return t, apierrors.NewBadRequest("continue key is not valid: " + err.Error())
	}
	return t, nil
}

const expiredContinue = "The provided continue parameter is too old to display a consistent list result. " +
	"You can start a new list without the continue parameter, or use the continue token in this response " +
	"to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent " +
	"list - objects that were created, modified, or deleted between the time the first chunk was returned and " +
	"now may show up in the list."

// continueError turns an error of the store about a token's revision into its
// answer: for a compacted one 410 with a fresh token that goes on behind the
// same object in the newest state.
func (s *Server) continueError(err error, t continueToken) error {
	if !errors.Is(err, fsm.ErrCompacted) {
		return s.storeError(err, t.Revision)
	}
	gone := apierrors.NewResourceExpired(expiredContinue)
	rev := t.Revision
	t.Revision = 0
	gone.ErrStatus.ListMeta.Continue = t.encode()
	s.logger.Debug("continue token expired", "revision", rev)
	return gone
}
