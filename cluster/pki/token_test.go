package pki

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTokenRoundTrip(t *testing.T) {
	ca := newCA(t)
	tok := NewToken(RoleAgent, ca)
	text := tok.Reveal()
	if !strings.HasPrefix(text, "shp1.agent."+ca.Pin()+".") {
		t.Fatalf("layout: %s", text)
	}
	got, err := ParseToken(" " + text + "\n")
	if err != nil || got != tok {
		t.Fatalf("read back: %v", err)
	}
	for _, shown := range []string{fmt.Sprint(tok), fmt.Sprintf("%v %+v %#v %s", tok, tok, tok, tok), fmt.Sprint(&tok)} {
		if strings.Contains(shown, tok.secret) {
			t.Errorf("the secret shows in %q", shown)
		}
	}
}

func TestTokenMalformed(t *testing.T) {
	text := NewToken(RoleServer, newCA(t)).Reveal()
	parts := strings.Split(text, ".")
	with := func(i int, s string) string {
		p := append([]string{}, parts...)
		p[i] = s
		return strings.Join(p, ".")
	}
	for name, bad := range map[string]string{
		"empty": "", "other version": with(0, "shp2"), "foreign": "K10abc::server:def", "admin role": with(1, "admin"),
		"short pin": with(2, "abc"), "bad ID": with(3, "zz"), "cut": text[:len(text)-5], "no secret": strings.Join(parts[:4], "."), "more": text + ".x",
	} {
		_, err := ParseToken(bad)
		if !errors.Is(err, ErrTokenMalformed) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), parts[4][:10]) {
			t.Errorf("%s: the error shows the secret", name)
		}
	}
}

func TestTokenRecord(t *testing.T) {
	ca := newCA(t)
	tok := NewToken(RoleAgent, ca)
	data, err := tok.Record(now, time.Hour, "test").Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), tok.secret) {
		t.Fatal("the record holds the secret")
	}
	rec, err := DecodeTokenRecord(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Check(tok, now); err != nil {
		t.Errorf("good token: %v", err)
	}
	if err := rec.Check(tok, now.Add(61*time.Minute)); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("expired token: %v", err)
	}
	wrong := tok
	wrong.secret = NewToken(RoleAgent, ca).secret
	if err := rec.Check(wrong, now); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("wrong secret: %v", err)
	}
	promoted := tok
	promoted.Role = RoleServer
	if err := rec.Check(promoted, now); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("agent token dressed as a server's: %v", err)
	}
	if rec.NeedsRenewal(now.Add(29*time.Minute)) || !rec.NeedsRenewal(now.Add(31*time.Minute)) {
		t.Error("renewal is not at half of the life")
	}
	if _, err := DecodeTokenRecord([]byte(`{"version":2}`)); err == nil {
		t.Error("a record of a later version was read")
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add("shp1.agent.x.y.z")
	f.Fuzz(func(t *testing.T, s string) {
		if tok, err := ParseToken(s); err == nil && tok.Reveal() != strings.TrimSpace(s) {
			t.Errorf("%q reads back as %q", s, tok.Reveal())
		}
	})
}
