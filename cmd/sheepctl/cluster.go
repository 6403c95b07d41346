package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/shepherd-project/shepherd/api/wire"
)

func newClusterCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{
		Use:   "cluster",
		Short: "Look at the servers, move leadership, remove and promote servers, rotate the data key",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(newStatusCommand(c, streams), newMembersCommand(c, streams), newTransferCommand(c, streams),
		newRemoveCommand(c, streams), newPromoteCommand(c, streams), newConfirmRestoreCommand(c, streams),
		newRotateKeyCommand(c, streams))
	return root
}

func newStatusCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show members, leader, term, command level, indexes and health, as one server sees them",
		Long: "Show members, leader, term, indexes and health. The first server that answers is asked,\n" +
			"or the one that --server names. It also answers when there is no leader, and then says\n" +
			"which members are missing. The exit code is 0 when there is a leader, else 1.\n" +
			"LEVEL is the highest command level that a server's build can apply. The cluster's own is\n" +
			"raised by itself once every server can; until then it says who holds it up.",
		Example: "  sheepctl cluster status\n  sheepctl cluster status --server https://10.0.0.1:9876 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("unknown output format %q: use json, or leave -o out for text", output)
			}
			var status wire.ClusterStatus
			if err := c.call(cmd.Context(), http.MethodGet, wire.PathStatus, nil, &status); err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(streams.Out)
				enc.SetIndent("", "  ")
				if err := enc.Encode(status); err != nil {
					return err
				}
			} else if err := printStatus(streams.Out, &status); err != nil {
				return err
			}
			if status.Leader == "" {
				return fmt.Errorf("there is no leader: %s", status.Message)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, or empty for text")
	return cmd
}

func printStatus(w io.Writer, s *wire.ClusterStatus) error {
	leader := s.Leader
	if leader == "" {
		leader = "none"
	}
	fmt.Fprintf(w, "Leader: %s   Term: %d   Asked: %s\n", leader, s.Term, s.Server)
	fmt.Fprintf(w, "Command level: %d", s.Level)
	if s.LevelNote != "" {
		fmt.Fprintf(w, " (%s)", s.LevelNote)
	}
	fmt.Fprintln(w)
	if s.Message != "" {
		fmt.Fprintln(w, s.Message)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tADDRESS\tROLE\tLAST\tAPPLIED\tLEVEL\tHEALTHY\tDETAIL")
	for _, m := range s.Members {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s\t%v\t%s\n", m.Name, m.Address, m.Role, m.LastIndex, m.AppliedIndex, maxLevel(&m), m.Healthy, m.Detail)
	}
	return t.Flush()
}

// maxLevel is the highest command level that a member's build can apply.
func maxLevel(m *wire.Member) string {
	if m.MaxLevel == 0 {
		return "-"
	}
	return fmt.Sprint(m.MaxLevel)
}

func newTransferCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "transfer [NAME]",
		Short: "Move leadership to the named server, or to the one that is furthest ahead",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var req wire.TransferRequest
			if len(args) == 1 {
				req.Name = args[0]
			}
			start := time.Now()
			var done wire.TransferResponse
			if err := c.call(cmd.Context(), http.MethodPost, wire.PathTransfer, req, &done); err != nil {
				return err
			}
			_, err := fmt.Fprintf(streams.Out, "%s leads in term %d (%d ms)\n", done.Leader, done.Term, time.Since(start).Milliseconds())
			return err
		},
	}
}

// call sends a request on one of Shepherd's own paths and decodes the answer.
func (c *clients) call(ctx context.Context, method, path string, in, out any) error {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return err
	}
	return callServer(ctx, config, method, path, in, out)
}

func callServer(ctx context.Context, config *rest.Config, method, path string, in, out any) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, base.JoinPath(path).String(), &body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return answerError(method, path, resp)
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxSmall))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: the answer is not what was expected: %w", method, path, err)
	}
	return nil
}

// answerError is what an answer says that is no success.
func answerError(method, path string, resp *http.Response) error {
	answer, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxSmall))
	if err != nil {
		return err
	}
	var e wire.Error
	if json.Unmarshal(answer, &e) == nil && e.Message != "" {
		return fmt.Errorf("%s", e.Message)
	}
	return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
}
