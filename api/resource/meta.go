package resource

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Source is where randomness is drawn from: a *rand.Rand that tests can seed,
// of math/rand or math/rand/v2.
type Source interface{ Uint64() uint64 }

// NewUID draws a version 4 UUID.
func NewUID(r Source) types.UID {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], r.Uint64())
	binary.BigEndian.PutUint64(b[8:], r.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	text := hex.EncodeToString(b[:])
	return types.UID(text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:])
}

// safeLetters spell no words, as in Kubernetes.
const safeLetters = "bcdfghjklmnpqrstvwxz2456789"

const (
	suffixLength    = 5
	maxGenerateName = 63 - suffixLength
)

// GenerateName returns base, cut to fit, with five random characters.
func GenerateName(r Source, base string) string {
	if len(base) > maxGenerateName {
		base = base[:maxGenerateName]
	}
	return base + Suffix(r, suffixLength)
}

// Suffix returns n random characters from an alphabet that spells no words.
func Suffix(r Source, n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = safeLetters[r.Uint64()%uint64(len(safeLetters))]
	}
	return string(text)
}

// SetCreated fills the metadata that the server sets on creation and clears
// what a client may not set. now is the cluster time; it is cut to seconds.
// The generation is PrepareForCreate's.
func SetCreated(obj metav1.Object, uid types.UID, now time.Time) {
	obj.SetUID(uid)
	obj.SetCreationTimestamp(metav1.NewTime(now.UTC().Truncate(time.Second)))
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetResourceVersion("")
	obj.SetSelfLink("")
}

// SetDeleted marks an object as being deleted: it may take grace seconds from
// now on. A second call may only shorten. It reports whether anything changed.
func SetDeleted(obj metav1.Object, now time.Time, grace int64) bool {
	at := metav1.NewTime(now.UTC().Truncate(time.Second).Add(time.Duration(grace) * time.Second))
	if old := obj.GetDeletionTimestamp(); old != nil {
		if oldGrace := obj.GetDeletionGracePeriodSeconds(); oldGrace == nil || grace >= *oldGrace || grace > 0 && !at.Before(old) {
			return false
		}
	} else if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(&grace)
	return true
}
