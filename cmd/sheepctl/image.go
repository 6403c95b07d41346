package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/shepherd-project/shepherd/agent/image"
)

func newImageCommand(streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:   "image",
		Short: "Work with the images of this machine's agent",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newImageImportCommand(streams))
	return root
}

func newImageImportCommand(streams genericiooptions.IOStreams) *cobra.Command {
	dataDir := filepath.Dir(machineKubeconfig())
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Add the images of an OCI layout or docker save archive to this machine",
		Long: "Add the images of an OCI layout or docker save archive, plain or compressed, to the image\n" +
			"store of this machine's agent, which may be running. FILE - is standard input. Nothing\n" +
			"changes unless the whole archive is good.",
		Example: "  sheepctl image import web.tar\n  sheepctl image import --data-dir /srv/shepherd web.tar",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in := io.Reader(streams.In)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			dir, err := filepath.Abs(filepath.Join(dataDir, "images"))
			if err != nil {
				return err
			}
			store, err := image.Open(dir)
			if err != nil {
				return fmt.Errorf("open the image store (are you root, and is --data-dir right?): %w", err)
			}
			refs, err := store.Import(cmd.Context(), in)
			if err != nil {
				return fmt.Errorf("import %s: %w", args[0], err)
			}
			for _, ref := range refs {
				if _, err := fmt.Fprintln(streams.Out, "imported", ref); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", dataDir, "The agent's data directory")
	return cmd
}
