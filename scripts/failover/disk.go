package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The ioctls of linux/fs.h that stop all writing to a file system, and let it go on.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// disk is an ext4 file system of its own, in a file, that can be frozen. A
// guard, which no signal from the terminal reaches, thaws and unmounts it when
// this program ends, however it ends: nothing that waits for a frozen file
// system can be killed.
type disk struct {
	mount  string
	frozen bool
	guard  *exec.Cmd
	life   io.WriteCloser // the guard acts when it is closed
}

const guardScript = `cat >/dev/null
fsfreeze --unfreeze "$1" 2>/dev/null
umount "$1" 2>/dev/null || { sleep 1; umount "$1" || umount --lazy "$1"; }`

func newDisk(dir string) (*disk, error) {
	d := &disk{mount: filepath.Join(dir, "disk")}
	image := filepath.Join(dir, "image")
	if err := errors.Join(os.Mkdir(d.mount, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20)); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, d.mount}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	d.guard = exec.Command("sh", "-c", guardScript, "guard", d.mount)
	d.guard.Stderr = os.Stderr
	d.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if d.life, err = d.guard.StdinPipe(); err == nil {
		err = d.guard.Start()
	}
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(d.mount, 0))
	}
	return d, nil
}

func (d *disk) control(request int) error {
	f, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetInt(int(f.Fd()), uint(request), 0), f.Close())
}

// freeze returns when every write to the file system waits.
func (d *disk) freeze() error {
	if err := d.control(fiFreeze); err != nil {
		return fmt.Errorf("freeze %s: %w", d.mount, err)
	}
	d.frozen = true
	return nil
}

// thaw lets writes go on. It does nothing if they do.
func (d *disk) thaw() error {
	if !d.frozen {
		return nil
	}
	if err := d.control(fiThaw); err != nil {
		return fmt.Errorf("thaw %s: %w", d.mount, err)
	}
	d.frozen = false
	return nil
}

// close unmounts. The servers on it have ended.
func (d *disk) close() error {
	return errors.Join(d.life.Close(), d.guard.Wait())
}
