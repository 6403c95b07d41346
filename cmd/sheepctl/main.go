// Command sheepctl is the client: kubectl's whole command tree, and the
// commands for what is Shepherd's own (cluster, drill, image, backup).
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	useMachineKubeconfig(os.Args[1:])
	if err := cli.RunNoErrOutput(newCommand()); err != nil {
		cmdutil.CheckErr(err) // prints as kubectl does, and exits
	}
}

func newCommand() *cobra.Command {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	flags := genericclioptions.NewConfigFlags(true).
		WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	clients := &clients{flags: flags}
	flags.WithWrapConfigFn(clients.tryEveryServer)

	// Without kubectl's plug-ins: they are looked for before our own commands
	// are known.
	root := cmd.NewKubectlCommand(cmd.KubectlOptions{ConfigFlags: flags, IOStreams: streams})
	root.Use = "sheepctl"
	root.Short = "sheepctl controls a Shepherd cluster"
	root.Long = "sheepctl controls a Shepherd cluster. It is kubectl, with every server of the kubeconfig\n" +
		"tried in turn, and with commands of its own: cluster, drill, image and backup.\n\n" +
		"Without --kubeconfig, KUBECONFIG and ~/.kube/config it uses the kubeconfig of this\n" +
		"machine's server, " + machineKubeconfig() + "."
	root.AddCommand(newClusterCommand(clients, streams), newDrillCommand(clients, streams), newImageCommand(streams), newBackupCommand(clients, streams))
	return root
}
