package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/shepherd-project/shepherd/api/wire"
)

// memberPrefix begins what -o name prints, and may stand before a name.
const memberPrefix = "server/"

// memberList is what -o json and yaml print.
type memberList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Items      []memberItem `json:"items"`
}

type memberItem struct {
	Name         string `json:"name"`
	ID           string `json:"id"`
	Address      string `json:"address"`
	Suffrage     string `json:"suffrage"` // voter or nonvoter
	Leader       bool   `json:"leader"`
	Healthy      bool   `json:"healthy"`
	Detail       string `json:"detail,omitempty"`
	LastContact  *int64 `json:"lastContactMillis,omitempty"`
	LastIndex    uint64 `json:"lastIndex"`
	AppliedIndex uint64 `json:"appliedIndex"`
}

func newMembersCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "members",
		Aliases: []string{"member", "servers"},
		Short:   "List the servers with their votes, health and indexes",
		Long: "List the servers of the cluster as one of them sees it: who has a vote, who leads, how long\n" +
			"ago each was heard, and up to which log entry it has applied. It also works without a leader.",
		Example: "  sheepctl cluster members\n  sheepctl cluster members -o yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var status wire.ClusterStatus
			if err := c.call(cmd.Context(), http.MethodGet, wire.PathStatus, nil, &status); err != nil {
				return err
			}
			return printMembers(streams.Out, output, status.Members)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json, yaml, name, or empty for a table")
	return cmd
}

func printMembers(w io.Writer, output string, members []wire.Member) error {
	list := memberList{APIVersion: "shepherd/v1", Kind: "ServerList", Items: []memberItem{}}
	for _, m := range members {
		suffrage := wire.RoleVoter
		if m.Role == wire.RoleNonvoter {
			suffrage = m.Role
		}
		list.Items = append(list.Items, memberItem{
			m.Name, m.ID, m.Address, suffrage, m.Role == wire.RoleLeader, m.Healthy, m.Detail, m.LastContact, m.LastIndex, m.AppliedIndex,
		})
	}
	switch output {
	case "":
		return printMemberTable(w, list.Items)
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "    ")
		return enc.Encode(list)
	case "yaml":
		text, err := yaml.Marshal(list)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	case "name":
		for _, m := range list.Items {
			if _, err := fmt.Fprintln(w, memberPrefix+m.Name); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("unknown output format %q: use json, yaml or name, or leave -o out for a table", output)
	}
}

func printMemberTable(w io.Writer, members []memberItem) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tID\tADDRESS\tSUFFRAGE\tLEADER\tHEALTHY\tLAST CONTACT\tAPPLIED\tDETAIL")
	for _, m := range members {
		contact := "never"
		if m.LastContact != nil {
			contact = (time.Duration(*m.LastContact) * time.Millisecond).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%v\t%v\t%s\t%d\t%s\n", m.Name, m.ID, m.Address, m.Suffrage, m.Leader, m.Healthy, contact, m.AppliedIndex, m.Detail)
	}
	return t.Flush()
}

func newRemoveCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a server from the cluster for good",
		Long: "Remove the server with this name or ID from the cluster for good. It is refused when too few of\n" +
			"the remaining voters answer, and for the leader: move leadership first. A removed server that\n" +
			"still runs ends; to use its machine again, empty its data directory and start it with --join.\n" +
			"Removing a server that is not there is no error.",
		Example: "  sheepctl cluster remove s3",
		Args:    cobra.ExactArgs(1),
		RunE:    changeMember(c, streams, wire.PathRemove),
	}
}

func newPromoteCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "promote NAME",
		Short: "Give a new server its vote at once, or say what it lacks",
		Long: "Give the server with this name or ID a vote. The leader does so by itself as soon as the server\n" +
			"has caught up; this command says what it still lacks. Promoting a voter is no error.",
		Example: "  sheepctl cluster promote s4",
		Args:    cobra.ExactArgs(1),
		RunE:    changeMember(c, streams, wire.PathPromote),
	}
}

func changeMember(c *clients, streams genericiooptions.IOStreams, path string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		var done wire.MemberResponse
		req := wire.MemberRequest{Name: strings.TrimPrefix(args[0], memberPrefix)}
		if err := c.call(cmd.Context(), http.MethodPost, path, req, &done); err != nil {
			return err
		}
		_, err := fmt.Fprintln(streams.Out, done.Message)
		return err
	}
}
