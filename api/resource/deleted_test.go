package resource

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A grace of zero ends a graceful deletion, also after its time was up: a
// container that took all of its grace must not leave its pod for ever.
func TestZeroGraceAlwaysEnds(t *testing.T) {
	t0 := time.Unix(1000, 0)
	for _, late := range []time.Duration{0, time.Second, 5 * time.Second, time.Hour} {
		pod := &corev1.Pod{}
		if !SetDeleted(pod, t0, 5) {
			t.Fatal("the first deletion was not taken")
		}
		if SetDeleted(pod, t0.Add(late), 9) {
			t.Errorf("after %v a longer grace was taken", late)
		}
		if !SetDeleted(pod, t0.Add(late), 0) || *pod.DeletionGracePeriodSeconds != 0 {
			t.Errorf("after %v a grace of zero left %d seconds", late, *pod.DeletionGracePeriodSeconds)
		}
	}
}
