package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/shepherd-project/shepherd/cluster"
)

// errNoPassphrase is returned when one is needed and there is nobody to ask.
var errNoPassphrase = errors.New("the backup is encrypted: give --passphrase-file, or run this on a terminal")

// passphrase is where a backup's passphrase comes from.
type passphrase struct {
	file string
	none bool
}

func (p *passphrase) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.file, "passphrase-file", "", "File with the passphrase, its first line (default: ask on the terminal)")
}

// read returns the passphrase for a new backup, or nil where none is wanted.
func (p *passphrase) read(streams genericiooptions.IOStreams, twice bool) ([]byte, error) {
	switch {
	case p.none && p.file != "":
		return nil, errors.New("--no-encryption and --passphrase-file exclude one another")
	case p.none:
		return nil, nil
	case p.file != "":
		return cluster.ReadPassphrase(p.file)
	case !term.IsTerminal(int(os.Stdin.Fd())):
		return nil, errors.New("a backup holds the cluster's keys and Secrets: give --passphrase-file to encrypt it, or --no-encryption to save it plain")
	}
	return ask(streams, twice)
}

// readFor returns the passphrase of a backup that exists, nil for a plain one.
func (p *passphrase) readFor(h cluster.BackupHeader, streams genericiooptions.IOStreams) ([]byte, error) {
	switch {
	case h.Encryption == nil:
		return nil, nil
	case p.file != "":
		return cluster.ReadPassphrase(p.file)
	case !term.IsTerminal(int(os.Stdin.Fd())):
		return nil, errNoPassphrase
	}
	return ask(streams, false)
}

func ask(streams genericiooptions.IOStreams, twice bool) ([]byte, error) {
	one := func(prompt string) ([]byte, error) {
		fmt.Fprint(streams.ErrOut, prompt)
		text, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(streams.ErrOut)
		return text, err
	}
	secret, err := one("Passphrase of the backup: ")
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	if len(secret) == 0 {
		return nil, errors.New("the passphrase is empty")
	}
	if !twice {
		return secret, nil
	}
	again, err := one("Once more: ")
	if err != nil {
		return nil, fmt.Errorf("read the passphrase: %w", err)
	}
	if !bytes.Equal(secret, again) {
		return nil, errors.New("the passphrases differ")
	}
	return secret, nil
}
