package histories

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// reply is an answer as a client reads it.
type reply struct {
	err    error // no answer, or half of one
	code   int
	text   string
	object wireObject
}

func readReply(resp *http.Response, err error) reply {
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	r := reply{err: err, code: resp.StatusCode, text: string(text)}
	if r.err == nil {
		r.err = json.Unmarshal(text, &r.object)
	}
	return r
}

// want is an error unless the reply has that status.
func (r reply) want(code int) error {
	if r.err != nil || r.code != code {
		return fmt.Errorf("got %d %s, %v; want %d", r.code, r.text, r.err, code)
	}
	return nil
}

// must fails the test unless the reply has that status.
func (s *simulation) must(r reply, code int) reply {
	s.t.Helper()
	if err := r.want(code); err != nil {
		s.t.Fatal(err)
	}
	return r
}
