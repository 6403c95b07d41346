package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sort"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/shepherd-project/shepherd/cluster"
)

func newBackupCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:   "backup",
		Short: "Save, inspect and restore backups of the whole cluster",
		Long: "Save, inspect and restore backups of the whole cluster. A backup is one file with everything\n" +
			"that a blank machine needs: all objects, the cluster's CA with its key, and the join tokens' records.\n" +
			"Who has the file, and its passphrase where it has one, is the cluster's administrator.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newBackupSave(c, streams), newBackupInspect(streams), newBackupRestore(streams))
	return root
}

func newBackupSave(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	var pass passphrase
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the cluster into a file, encrypted with a passphrase",
		Long: "Save the cluster into a file. It holds everything that was acknowledged before. The passphrase is\n" +
			"read from --passphrase-file, or asked for on a terminal. The file is read back and checked before\n" +
			"it gets its name: a save that is interrupted leaves FILE as it was.",
		Example: "  sheepctl backup save cluster.backup --passphrase-file pass\n  sheepctl backup save cluster.backup --no-encryption",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, err := pass.read(streams, true)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			b, err := cluster.SaveBackup(args[0], secret, func(w io.Writer) error {
				return c.stream(ctx, cluster.PathBackup, func(r io.Reader) error { return cluster.CopyBackup(w, r, secret) })
			})
			if err != nil {
				return fmt.Errorf("no backup was saved: %w", err)
			}
			if b.Header.Encryption == nil {
				fmt.Fprintf(streams.ErrOut, "Warning: %s is not encrypted and holds the cluster's CA key and all Secrets: keep it as you keep those.\n", args[0])
			}
			_, err = fmt.Fprintf(streams.Out, "%s: cluster %s, revision %d, %d objects\n", args[0], b.Header.ClusterID, b.Header.Revision, b.Store.View().Len())
			return err
		},
	}
	pass.flags(cmd)
	cmd.Flags().BoolVar(&pass.none, "no-encryption", false, "Save a plain file, which holds the cluster's keys and Secrets for everyone who can read it")
	return cmd
}

func newBackupInspect(streams genericiooptions.IOStreams) *cobra.Command {
	var pass passphrase
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a backup and say what it holds",
		Long: "Check every checksum of a backup and say what it holds. Without the passphrase of an encrypted one\n" +
			"only its outer checksum and its header are checked. No cluster is asked.",
		Example: "  sheepctl backup inspect cluster.backup --passphrase-file pass",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := cluster.ReadBackupHeader(args[0])
			if err != nil {
				return err
			}
			var b *cluster.Backup
			secret, err := pass.readFor(h, streams)
			switch {
			case errors.Is(err, errNoPassphrase): // the header is worth showing
			case err != nil:
				return err
			default:
				if b, err = cluster.OpenBackup(args[0], secret); err != nil {
					return err
				}
			}
			return printBackup(streams.Out, h, b)
		},
	}
	pass.flags(cmd)
	return cmd
}

func printBackup(w io.Writer, h cluster.BackupHeader, b *cluster.Backup) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	encrypted := "no"
	if h.Encryption != nil {
		encrypted = "yes"
	}
	fmt.Fprintf(t, "Cluster:\t%s\nTime:\t%s\nServer:\t%s\nRevision:\t%d\nRestore epoch:\t%d\nEncrypted:\t%s\n",
		h.ClusterID, h.Created.Format(time.RFC3339), h.Server, h.Revision, h.Epoch, encrypted)
	if b == nil {
		fmt.Fprintln(t, "Objects:\tnot looked at: give --passphrase-file\nChecked:\tthe file's checksum")
		return t.Flush()
	}
	fmt.Fprintf(t, "Objects:\t%d\nChecked:\tthe file's checksum, the keys, the state's checksum and hash\n", b.Store.View().Len())
	if err := t.Flush(); err != nil { // a long kind must not move the columns above
		return err
	}
	counts := b.Counts()
	kinds := make([]string, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	sort.Strings(kinds)
	for _, k := range kinds {
		fmt.Fprintf(t, "  %s\t%d\n", k, counts[k])
	}
	return t.Flush()
}

func newBackupRestore(streams genericiooptions.IOStreams) *cobra.Command {
	var pass passphrase
	cfg := cluster.RestoreConfig{DataDir: os.Getenv("SHEPHERD_DATA_DIR"), Address: "127.0.0.1:9876"}
	if cfg.DataDir == "" {
		cfg.DataDir = "/var/lib/shepherd"
	}
	host, err := os.Hostname()
	if err == nil {
		cfg.Name = host
	}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a backup into this machine's empty data directory",
		Long: "Restore a backup into this machine's empty data directory. It runs on the machine that shall be the\n" +
			"first server, asks no cluster and needs none. Then:\n\n" +
			"  1. start the server as always, without --bootstrap and --join; further servers join it\n" +
			"  2. see that everything is there\n" +
			"  3. sheepctl cluster confirm-restore: until then, agents kill no pod that the backup does not know\n\n" +
			"The servers of before must not come back with their data: stop them first. Agents, tokens and\n" +
			"kubeconfigs of before are still good. Each restore begins a new restore epoch, in which every\n" +
			"resourceVersion exceeds all earlier ones. A backup that is damaged, or a wrong passphrase, changes nothing.",
		Example: "  sheepctl backup restore cluster.backup --passphrase-file pass --data-dir /var/lib/shepherd --name s1",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			h, err := cluster.ReadBackupHeader(args[0])
			if err != nil {
				return err
			}
			secret, err := pass.readFor(h, streams)
			if err != nil {
				return err
			}
			b, err := cluster.OpenBackup(args[0], secret)
			if err != nil {
				return err
			}
			objects := b.Store.View().Len()
			cfg.Now = time.Now()
			done, err := b.Restore(cfg)
			if err != nil {
				return fmt.Errorf("nothing was restored: %w", err)
			}
			_, err = fmt.Fprintf(streams.Out, "Restored %d objects of cluster %s, saved %s, as server %s in restore epoch %d, revision %d.\n"+
				"Next: start it with `shepherd --mode server --name %s --data-dir %s`, let the others join, then run `sheepctl cluster confirm-restore`.\n",
				objects, h.ClusterID, h.Created.Format(time.RFC3339), done.ServerID, done.Epoch, done.Revision, cfg.Name, cfg.DataDir)
			return err
		},
	}
	pass.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&cfg.DataDir, "data-dir", cfg.DataDir, "The server's data directory, which must hold no server yet")
	f.StringVar(&cfg.Name, "name", cfg.Name, "The server's name")
	f.StringVar(&cfg.Address, "advertise", cfg.Address, "HOST:PORT at which others reach the server; its start corrects it")
	f.Uint64Var(&cfg.Epoch, "epoch", 0, "The restore epoch to begin, above that of the backup (default: made from the clock, so that no two restores share one)")
	return cmd
}

// stream sends a GET on one of Shepherd's own paths and reads the answer.
func (c *clients) stream(ctx context.Context, path string, read func(io.Reader) error) error {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answerError(req.Method, path, resp)
	}
	return read(resp.Body)
}
