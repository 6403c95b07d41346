package seal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func testKeys(t testing.TB) (Keys, Key) {
	t.Helper()
	keys := Begin(time.Unix(1000, 0))
	key, ok := keys.Get(keys.Initial)
	if !ok {
		t.Fatal("a new cluster has no key")
	}
	return keys, key
}

func plainText(size int) []byte {
	b := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(b)
	b[0] = 1
	clear(b[1:min(size, plainEntry)])
	return b
}

func TestEntryRoundTrip(t *testing.T) {
	keys, key := testKeys(t)
	var sealer Sealer
	var opener Opener
	for _, size := range []int{plainEntry, plainEntry + 1, 100, 512 << 10} {
		entry := plainText(size)
		sealed, err := sealer.Seal(key, entry)
		if err != nil {
			t.Fatal(err)
		}
		if len(sealed) != size+Overhead || KeyOf(sealed) != key.ID || sealed[0] != entry[0] {
			t.Errorf("%d bytes became %d under key %d", size, len(sealed), KeyOf(sealed))
		}
		if size > 50 && bytes.Contains(sealed, entry[plainEntry:plainEntry+16]) {
			t.Error("the entry can be read")
		}
		if got, err := opener.Open(sealed, keys.Get); err != nil || !bytes.Equal(got, entry) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if got, err := opener.Open(entry, keys.Get); err != nil || !bytes.Equal(got, entry) {
			t.Errorf("a plain entry: %v", err)
		}
		if _, err := sealer.Seal(key, sealed); err == nil {
			t.Error("a sealed entry was sealed again")
		}
	}
	if _, err := sealer.Seal(key, []byte{1}); err == nil {
		t.Error("one byte was taken for an entry")
	}
}

// Every bit counts, and every length but the right one.
func TestEntryRefusesEveryChange(t *testing.T) {
	keys, key := testKeys(t)
	var sealer Sealer
	sealed, err := sealer.Seal(key, plainText(60))
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(sealed) * 8 {
		bad := bytes.Clone(sealed)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := new(Opener).Open(bad, keys.Get); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoKey) {
			t.Errorf("bit %d flipped: %v", bit, err)
		}
	}
	for n := plainEntry; n < len(sealed); n++ {
		if _, err := new(Opener).Open(sealed[:n], keys.Get); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := new(Opener).Open(append(bytes.Clone(sealed), 0), keys.Get); !errors.Is(err, ErrDamaged) {
		t.Errorf("one byte more: %v", err)
	}
	if _, err := new(Opener).Open(sealed, Keys{}.Get); !errors.Is(err, ErrNoKey) {
		t.Errorf("without the key: %v", err)
	}
}

// No two entries have the same salt and counter, whatever is restarted.
func TestNoncesAreUnique(t *testing.T) {
	_, key := testKeys(t)
	_, other := testKeys(t)
	seen := map[string]bool{}
	take := func(s *Sealer, k Key) {
		t.Helper()
		sealed, err := s.Seal(k, plainText(20))
		if err != nil {
			t.Fatal(err)
		}
		nonce := string(sealed[1:entryHeader])
		if seen[nonce] {
			t.Fatalf("nonce %x came twice", nonce)
		}
		seen[nonce] = true
	}
	for range 50 { // restarts
		s := new(Sealer)
		for i := range 40 {
			take(s, key)
			if i%10 == 9 { // a rotation and back
				take(s, other)
			}
		}
	}
	// A subkey that is worn out is replaced, before its counter or bytes are over.
	for _, worn := range []func(*Sealer){
		func(s *Sealer) { s.counter = maxSealed },
		func(s *Sealer) { s.bytes = maxSealedBytes },
	} {
		s := new(Sealer)
		take(s, key)
		salt := s.salt
		worn(s)
		take(s, key)
		if s.salt == salt || s.counter != 1 {
			t.Errorf("a worn-out subkey goes on: counter %d", s.counter)
		}
	}
}

func TestOpenerKeepsFewSubkeys(t *testing.T) {
	keys, key := testKeys(t)
	var o Opener
	for range 3 * maxOpeners {
		sealed, err := new(Sealer).Seal(key, plainText(30))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Open(sealed, keys.Get); err != nil {
			t.Fatal(err)
		}
		if len(o.subkeys) > maxOpeners {
			t.Fatalf("%d subkeys are kept", len(o.subkeys))
		}
	}
}

func streamText(size int) []byte {
	b := plainText(size)
	clear(b[plainStream-4 : plainStream])
	return b
}

func sealStream(t testing.TB, key Key, text []byte, step int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out, key)
	for p := text; len(p) > 0; p = p[min(step, len(p)):] {
		if _, err := w.Write(p[:min(step, len(p))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func openStream(sealed []byte, keys Keys) ([]byte, error) {
	r, err := NewReader(bytes.NewReader(sealed), keys.Get)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func TestStreamRoundTrip(t *testing.T) {
	keys, key := testKeys(t)
	for _, size := range []int{plainStream, plainStream + 1, 1000, plainStream + chunkSize - 1, plainStream + chunkSize, plainStream + chunkSize + 1, plainStream + 3*chunkSize, 300_000} {
		for _, step := range []int{7, 4096, 1 << 20} {
			text := streamText(size)
			sealed := sealStream(t, key, text, step)
			if size > 100 && bytes.Contains(sealed, text[plainStream:plainStream+16]) {
				t.Error("the stream can be read")
			}
			if got, err := openStream(sealed, keys); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes in steps of %d: %d came back, %v", size, step, len(got), err)
			}
		}
		text := streamText(size)
		if got, err := openStream(text, keys); err != nil || !bytes.Equal(got, text) {
			t.Errorf("a plain stream of %d bytes: %d came back, %v", size, len(got), err)
		}
	}
	r, err := NewReader(iotest.OneByteReader(bytes.NewReader(sealStream(t, key, streamText(1000), 100))), keys.Get)
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(r, streamText(1000)); err != nil {
		t.Error(err)
	}
	if got, err := openStream([]byte("short"), keys); err != nil || string(got) != "short" {
		t.Errorf("what is too short to be sealed: %q, %v", got, err)
	}
}

// What was changed, cut off, put in another order, repeated or appended is
// refused, and nothing of a bad chunk comes out.
func TestStreamRefusesEveryChange(t *testing.T) {
	keys, key := testKeys(t)
	text := streamText(plainStream + 2*chunkSize + 500)
	sealed := sealStream(t, key, text, 5000)
	const full = chunkSize + tagSize
	chunk := func(i int) []byte {
		return sealed[streamHeader+i*full : min(streamHeader+(i+1)*full, len(sealed))]
	}
	join := func(parts ...[]byte) []byte {
		return bytes.Join(append([][]byte{sealed[:streamHeader]}, parts...), nil)
	}
	cases := map[string][]byte{
		"without the last chunk": join(chunk(0), chunk(1)),
		"header alone":           join(),
		"two chunks exchanged":   join(chunk(1), chunk(0), chunk(2)),
		"a chunk twice":          join(chunk(0), chunk(0), chunk(1), chunk(2)),
		"a chunk left out":       join(chunk(0), chunk(2)),
		"something appended":     join(chunk(0), chunk(1), chunk(2), []byte{0}),
		"the last chunk twice":   join(chunk(0), chunk(1), chunk(2), chunk(2)),
		"half a header":          sealed[:streamHeader-3],
		"another stream's chunk": join(chunk(0), sealStream(t, key, text, 5000)[streamHeader+full:]),
	}
	rng := rand.New(rand.NewSource(1))
	for range 200 {
		cut := plainStream + rng.Intn(len(sealed)-plainStream)
		cases[fmt.Sprintf("cut to %d", cut)] = sealed[:cut]
	}
	for name, bad := range cases {
		got, err := openStream(bad, keys)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.HasPrefix(text, got) {
			t.Errorf("%s: bytes came out that were not put in", name)
		}
	}
	small := sealStream(t, key, streamText(plainStream+40), 100)
	for bit := range len(small) * 8 {
		bad := bytes.Clone(small)
		bad[bit/8] ^= 1 << (bit % 8)
		if got, err := openStream(bad, keys); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoKey) {
			t.Errorf("bit %d flipped: %d bytes, %v", bit, len(got), err)
		}
	}
}

func TestWriterWithoutItsEndIsRefused(t *testing.T) {
	keys, key := testKeys(t)
	var out bytes.Buffer
	w := NewWriter(&out, key)
	if _, err := w.Write(streamText(3 * chunkSize)); err != nil {
		t.Fatal(err)
	}
	if _, err := openStream(out.Bytes(), keys); !errors.Is(err, ErrDamaged) {
		t.Errorf("a stream that was not closed: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("more")); err == nil {
		t.Error("a closed writer goes on")
	}
	if err := NewWriter(io.Discard, key).Close(); err == nil {
		t.Error("an empty stream was sealed")
	}
	full := errors.New("no space")
	if _, err := NewWriter(failing{full}, key).Write(streamText(100)); !errors.Is(err, full) {
		t.Errorf("a failed write: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestRingIsDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	write := func(path string, data []byte) error { return os.WriteFile(path, data, 0o600) }
	ring, err := OpenRing(path, write)
	if err != nil || ring.Keys().Len() != 0 {
		t.Fatalf("a missing file: %d keys, %v", ring.Keys().Len(), err)
	}
	keys, first := testKeys(t)
	second := NewKey(first.Created.Add(time.Hour))
	if err := ring.Add(keys); err != nil {
		t.Fatal(err)
	}
	more, err := keys.With(second)
	if err != nil {
		t.Fatal(err)
	}
	if err := ring.Add(more); err != nil {
		t.Fatal(err)
	}
	again, err := OpenRing(path, write)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []Key{first, second} {
		if got, ok := again.Get(k.ID); !ok || got != k {
			t.Errorf("key %d did not come back", k.ID)
		}
	}
	if newest, _ := again.Keys().Newest(); newest != second || again.Keys().Initial != first.ID {
		t.Errorf("newest %v, initial %d", newest, again.Keys().Initial)
	}
	// What cannot be stored is not used, and what contradicts is refused.
	fails := NewRing(keys, func(Keys) error { return errors.New("disk full") })
	if err := fails.Add(more); err == nil || fails.Keys().Len() != 1 {
		t.Errorf("keys that are not stored are used: %v", err)
	}
	forged := second
	forged.secret[0] ^= 1
	bad, err := Keys{}.With(forged)
	if err != nil {
		t.Fatal(err)
	}
	if err := ring.Add(bad); !errors.Is(err, ErrKeys) {
		t.Errorf("another key under a used ID: %v", err)
	}
	if foreign, _ := testKeys(t); !errors.Is(ring.Add(foreign), ErrKeys) {
		t.Error("keys of another cluster were taken")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRing(path, write); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestKeysAreBoundedAndHidden(t *testing.T) {
	keys, key := testKeys(t)
	for i := keys.Len(); i < MaxKeys; i++ {
		var err error
		if keys, err = keys.With(NewKey(time.Unix(int64(2000+i), 0))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := keys.With(NewKey(time.Unix(1, 0))); !errors.Is(err, ErrTooMany) {
		t.Errorf("one key too many: %v", err)
	}
	if n := len(keys.Encode()); n > MaxEncoded {
		t.Errorf("%d keys take %d bytes", MaxKeys, n)
	}
	if back, err := Decode(keys.Encode()); err != nil || back.Len() != MaxKeys || back.Initial != keys.Initial {
		t.Errorf("decoded: %v", err)
	}
	secret := fmt.Sprintf("%v", key.secret[0:4])
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, key); strings.Contains(text, strings.Trim(secret, "[]")) || !strings.Contains(text, "data key") {
			t.Errorf("%s prints %q", format, text)
		}
	}
}

func FuzzOpenEntry(f *testing.F) {
	keys, key := testKeys(f)
	sealed, err := new(Sealer).Seal(key, plainText(64))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add(sealed[:40])
	f.Add([]byte{1, 0, 0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := new(Opener).Open(b, keys.Get)
		if err == nil && KeyOf(b) != 0 && !bytes.Equal(b, sealed) {
			t.Errorf("a forged entry opened: %x", got)
		}
	})
}

func FuzzOpenStream(f *testing.F) {
	keys, key := testKeys(f)
	sealed := sealStream(f, key, streamText(200), 50)
	f.Add(sealed)
	f.Add(sealed[:40])
	f.Add(streamText(90))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := openStream(b, keys)
		if err == nil && !bytes.Equal(b, sealed) && !bytes.Equal(got, b) {
			t.Errorf("a forged stream opened: %x", got)
		}
	})
}

func FuzzDecodeKeys(f *testing.F) {
	keys, _ := testKeys(f)
	f.Add(keys.Encode())
	f.Add([]byte(`{"version":1,"keys":[{"id":1,"created":"0001-01-01T00:00:00Z","secret":"AA=="}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := Decode(b)
		if err != nil {
			return
		}
		if again, err := Decode(k.Encode()); err != nil || again.Len() != k.Len() || again.Initial != k.Initial {
			t.Errorf("it does not survive: %v", err)
		}
	})
}

func BenchmarkEntry512KB(b *testing.B) {
	keys, key := testKeys(b)
	entry := plainText(512 << 10)
	var sealer Sealer
	var opener Opener
	sealed, err := sealer.Seal(key, entry)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("seal", func(b *testing.B) {
		b.SetBytes(int64(len(entry)))
		for b.Loop() {
			if _, err := sealer.Seal(key, entry); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open", func(b *testing.B) {
		b.SetBytes(int64(len(entry)))
		for b.Loop() {
			if _, err := opener.Open(sealed, keys.Get); err != nil {
				b.Fatal(err)
			}
		}
	})
}
