package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/shepherd-project/shepherd/fsm"
)

// confirmAnnotation on a Node lets its agent kill pods that the cluster does
// not know, in the restore epoch that is the annotation's value.
const confirmAnnotation = "shepherd.io/confirm-restore-epoch"

func newConfirmRestoreCommand(c *clients, streams genericiooptions.IOStreams) *cobra.Command {
	return &cobra.Command{
		Use:   "confirm-restore [NODE...]",
		Short: "After a restore or a recovery, let agents kill pods that the cluster does not know",
		Long: "After a restore or a recovery, agents keep every pod that the cluster does not know: it may have been\n" +
			"created after the backup was made. Once what was restored is found good, this command lets the named\n" +
			"nodes, or all of them, kill such pods. It may be run again.",
		Example: "  sheepctl cluster confirm-restore\n  sheepctl cluster confirm-restore worker-1 worker-2",
		RunE: func(cmd *cobra.Command, names []string) error {
			config, err := c.flags.ToRESTConfig()
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			nodes := client.CoreV1().Nodes()
			list, err := nodes.List(cmd.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			revision, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
			if err != nil {
				return fmt.Errorf("the cluster's revision: %w", err)
			}
			epoch := revision >> fsm.EpochBits
			if epoch == 0 {
				return errors.New("this cluster was never restored or recovered: there is nothing to confirm")
			}
			if len(names) == 0 {
				for _, n := range list.Items {
					names = append(names, n.Name)
				}
			}
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, confirmAnnotation, epoch)
			var failed []error
			for _, name := range names {
				if _, err := nodes.Patch(cmd.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					failed = append(failed, fmt.Errorf("node %s: %w", name, err))
					continue
				}
				fmt.Fprintf(streams.Out, "node/%s confirmed in restore epoch %d\n", name, epoch)
			}
			if len(names) == 0 {
				fmt.Fprintln(streams.Out, "there are no nodes")
			}
			return errors.Join(failed...)
		},
	}
}
