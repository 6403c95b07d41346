package api

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/shepherd-project/shepherd/fsm"
)

// encodedCache remembers the JSON of object versions, the most recently used
// ones within a bound of bytes: a list, and a change that many watchers see,
// are encoded once. It is safe for concurrent use; its bytes are read-only.
type encodedCache struct {
	max int

	mu    sync.Mutex
	bytes int                                  // guarded by mu
	cache *simplelru.LRU[uint64, encodedEntry] // by revision, guarded by mu
}

type encodedEntry struct {
	key  fsm.Key
	json []byte
}

func (e encodedEntry) cost() int {
	return len(e.json) + len(e.key.Resource) + len(e.key.Namespace) + len(e.key.Name) + 128
}

// newEncodedCache makes a cache of about max bytes; 0 remembers nothing.
func newEncodedCache(max int) *encodedCache {
	c := &encodedCache{max: max}
	cache, err := simplelru.NewLRU(math.MaxInt, func(_ uint64, e encodedEntry) { c.bytes -= e.cost() })
	if err != nil {
		panic("api: encoded cache: " + err.Error()) // never: only a size below 1 is refused
	}
	c.cache = cache
	return c
}

func (c *encodedCache) get(o *fsm.Object) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.cache.Get(o.Modified); ok && e.key == o.Key {
		return e.json
	}
	return nil
}

func (c *encodedCache) add(o *fsm.Object, json []byte) {
	e := encodedEntry{key: o.Key, json: json}
	if e.cost() > c.max {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.Remove(o.Modified)
	c.cache.Add(o.Modified, e)
	for c.bytes += e.cost(); c.bytes > c.max; {
		c.cache.RemoveOldest()
	}
}

// objectJSON is the JSON of a stored object, without a newline: read-only.
func (s *Server) objectJSON(o *fsm.Object) ([]byte, error) {
	if json := s.encoded.get(o); json != nil {
		return json, nil
	}
	obj, err := s.decoder.Decode(o)
	if err != nil {
		return nil, err
	}
	gvk, err := objectKind(obj)
	if err != nil {
		return nil, err
	}
	json, err := encodeJSON(gvk, obj)
	if err != nil {
		return nil, err
	}
	s.encoded.add(o, json)
	return json, nil
}
