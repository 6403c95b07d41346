package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// agentMain is an agent in a process of its own, for tests to kill.
func agentMain() {
	var c Config
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv("RUNTIME_TEST_AGENT")), &c))
	built.layer = os.Getenv("RUNTIME_TEST_LAYER")
	r, err := New(c)
	fail(err)
	ctx := context.Background()
	fail(r.Recover(ctx))
	fail(r.CreatePod(ctx, PodConfig{UID: "uid-1", Namespace: "default", Name: "web"}))
	counter := guest("count", "serve")
	counter.Mounts = []Mount{{Type: "bind", Source: os.Getenv("RUNTIME_TEST_OUT"), Target: "/out"}}
	counter.Labels = map[string]string{"hash": "abc"}
	fail(r.StartContainer(ctx, "uid-1", counter))
	fmt.Println("started")
	select {}
}
