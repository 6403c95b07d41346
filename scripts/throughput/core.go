package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/shepherd-project/shepherd/cluster/pki"
)

// core is three servers without the API. The writers propose in the leader's
// own process: no client's protocol is in between.
type core struct {
	processes
	orders  io.WriteCloser // to the leader
	answers *bufio.Reader
}

func (c *core) begin(ctx context.Context, dir string) error {
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		return err
	}
	if err := pki.SaveCA(dir, ca); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		args := []string{"-node", name, "-address", address, "-dir", filepath.Join(dir, name), "-ca", dir}
		if name == "a" {
			args = append(args, "-bootstrap")
		}
		cmd := exec.Command(self, args...)
		orders, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, w, err := os.Pipe()
		if err != nil {
			return err
		}
		cmd.Stdout = w
		err = c.start(filepath.Join(dir, name+".log"), cmd)
		w.Close()
		if err != nil {
			return err
		}
		answers := bufio.NewReader(out)
		var id string
		line, err := answers.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &id)
		}
		if err != nil {
			return fmt.Errorf("node %s did not start, see %s: %w", name, filepath.Join(dir, name+".log"), err)
		}
		if name == "a" {
			c.orders, c.answers = orders, answers
			continue
		}
		var added string
		if err := c.order("add "+id+" "+address, &added); err != nil {
			return err
		}
	}
	var whole string
	return c.order("members 3", &whole)
}

func (c *core) order(line string, answer any) error {
	if _, err := io.WriteString(c.orders, line+"\n"); err != nil {
		return err
	}
	out, err := c.answers.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the node ended at %q: %w", line, err)
	}
	return json.Unmarshal(out, answer)
}

func (c *core) load(_ context.Context, l load) (r result) {
	order, err := json.Marshal(l)
	if err == nil {
		err = c.order("load "+string(order), &r)
	}
	if err != nil {
		return result{Errors: 1, First: err.Error()}
	}
	return r
}
