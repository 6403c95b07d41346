// Command shepherd is the daemon: a server, an agent, or both. It turns flags,
// environment and file into the packages' configurations, wires them together,
// and stops them on a signal. It decides nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/shepherd-project/shepherd/api"
)

const usage = `Shepherd runs containers on a cluster of machines that survives the loss of any of them.

Usage:
  shepherd --mode standalone                                      one machine, server and agent
  shepherd --mode server --bootstrap                              the first server of a cluster
  shepherd --mode server --join HOST:9876 --token-file FILE       a further server
  shepherd --mode agent --join HOST:9876 --token-file FILE        a worker machine
  shepherd cleanup [--data-dir DIR] [--run-dir DIR] [--cgroup-root NAME]
                                                                  stop all pods of this machine and remove what they leave
  shepherd compact [--data-dir DIR]                               shrink the Raft log of this machine's stopped server
  shepherd recover [--data-dir DIR] [--accept-different-state]    the majority is lost for good: let this machine's stopped server go on alone
  shepherd version

Tokens are in DATA/token/server and DATA/token/agent of every server, the
administrator's kubeconfig is DATA/admin.kubeconfig.

Settings, on the command line, as SHEPHERD_NAME in the environment, or as keys of the --config file:
`

func main() {
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments. It returns the exit code: 0
// for a clean stop, 1 for an error, 2 for a wrong command line.
func run(args, environ []string, stdout, stderr io.Writer) int {
	command := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		command, args = args[0], args[1:]
	}
	s := newSettings()
	switch command {
	case "version":
		fmt.Fprintf(stdout, "shepherd %s (%s, %s)\n", api.Version.GitVersion, api.Version.GoVersion, api.Version.Platform)
		return 0
	case "help":
		return help(s, stdout)
	case "run", "cleanup", "compact", "recover":
	default:
		fmt.Fprintf(stderr, "shepherd: there is no command %q; see shepherd --help\n", command)
		return 2
	}
	if command != "run" {
		// They work on directories, whatever mode the file says.
		s.cleanup = true
		if err := s.flags.Set("mode", modeAgent); err != nil {
			fmt.Fprintln(stderr, "shepherd:", err)
			return 1
		}
	}
	if command == "recover" {
		s.flags.BoolVar(&s.acceptDifference, "accept-different-state", false, "recover: also from a server whose state was found to differ from that of the majority; its objects may be wrong")
	}
	if err := s.load(args, environ); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return help(s, stdout)
		}
		fmt.Fprintln(stderr, "shepherd:", strings.ReplaceAll(err.Error(), "\n", "\nshepherd: "))
		return 2
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: "shepherd", Level: hclog.LevelFromString(s.LogLevel), Output: stderr, JSONFormat: s.LogJSON})
	ctx, stop := stopOnSignal(logger)
	defer stop()
	var err error
	switch command {
	case "cleanup":
		err = cleanup(ctx, s, logger)
	case "compact":
		err = compact(s, stdout)
	case "recover":
		err = recoverServer(ctx, s, logger, stdout)
	default:
		err = runDaemon(ctx, s, logger)
	}
	if err != nil {
		// Once more without the log's dressing: this is what a person reads.
		fmt.Fprintln(stderr, "shepherd:", err)
		return 1
	}
	return 0
}

func help(s *settings, stdout io.Writer) int {
	fmt.Fprint(stdout, usage, s.flags.FlagUsagesWrapped(110))
	return 0
}

// stopOnSignal returns a context that ends with the first SIGTERM or SIGINT.
// The second ends the process.
func stopOnSignal(logger hclog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	over := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case sig := <-signals:
				if n > 0 {
					logger.Error("second signal: exit without waiting", "signal", sig)
					os.Exit(1)
				}
				logger.Info("stopping", "signal", sig)
				cancel()
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		cancel()
	}
}
