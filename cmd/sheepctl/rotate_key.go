package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/shepherd-project/shepherd/api/wire"
)

func newRotateKeyCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate-key",
		Short: "Encrypt the servers' logs and snapshots with a new data key from now on",
		Long: "Encrypt the servers' logs and snapshots with a new data key from now on. Every server must\n" +
			"have stored the new key first: when one is down or too old, nothing changes, and the error\n" +
			"names it. Writes go on meanwhile. What was written before stays encrypted with the keys of\n" +
			"its time, which every server keeps in its DATA/data.keys.",
		Example: "  sheepctl cluster rotate-key",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var done wire.RotateKeyResponse
			if err := c.call(cmd.Context(), http.MethodPost, wire.PathRotateKey, struct{}{}, &done); err != nil {
				return err
			}
			_, err := fmt.Fprintf(streams.Out, "data key %d is in use (before: %d)\n", done.Key, done.Previous)
			return err
		},
	}
}
