package store

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// An unreadable is a folder with a file that the user must not read.
type unreadable struct {
	FS
	name string
}

func (u unreadable) Open(name string) (FileReader, error) {
	if name == u.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
	}
	return u.FS.Open(name)
}

// Each kind of file is damaged in each way. Whatever that means, inspect and export say what a
// start does, and a start that is refused names a remedy.
func TestInspectExportAndTheStartAgree(t *testing.T) {
	d := newDisk(t)
	d.cfg.segmentBytes, d.cfg.leaseNumbers = 350, 100
	d.mustStart()
	copyOf := func(dir string) map[string][]byte {
		files := make(map[string][]byte)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			files[e.Name()] = d.read(e.Name())
		}
		return files
	}
	publish := func() {
		d.publish("a", strings.Repeat("1", 100))
		d.wal.syncStep(time.Now())
	}
	for range 3 {
		publish()
	}
	d.checkpoint()
	publish()
	first := d.newest()
	older := copyOf(d.dir)
	for d.newest() == first {
		publish()
	}
	newest := d.newest()
	older[newest] = d.read(newest)
	d.publish("a", "2")
	for range 2 { // the mark has it
		d.wal.syncStep(time.Now())
	}
	for e, ending := range []string{"killed", "in order"} {
		if ending == "in order" {
			require.NoError(t, d.wal.close(time.Now()))
		}
		files := copyOf(d.dir)
		require.Contains(t, files, reserveName)
		files[failedSyncName], files["notes"], files[fileName(99, checkpointSuffix)+unfinishedSuffix] = nil, []byte("1"), []byte("1")
		for n, name := range slices.Sorted(maps.Keys(files)) {
			content := files[name]
			for i, damage := range []string{"none", "missing", "empty", "cut", "one bit", "folder", "link", "unreadable", "older copy"} {
				if (n+i+e)%exhaustive.Step(2) != 0 {
					continue
				}
				t.Run(fmt.Sprint(ending, ", ", name, ", ", damage), func(t *testing.T) {
					to := &disk{T: t, dir: filepath.Join(t.TempDir(), "log"), cfg: d.cfg, config: d.config}
					var err error
					to.cfg.FS, err = OpenDir(to.dir)
					require.NoError(t, err)
					for name, content := range files {
						to.write(name, content)
					}
					path := filepath.Join(to.dir, name)
					switch damage {
					case "missing", "folder", "link":
						require.NoError(t, os.Remove(path))
					}
					half := content[:len(content)/2]
					switch damage {
					case "empty":
						to.write(name, nil)
					case "cut":
						to.write(name, half)
					case "one bit":
						changed := bytes.Clone(content)
						if len(changed) > 0 {
							changed[len(changed)/2] ^= 4
						}
						to.write(name, changed)
					case "folder":
						require.NoError(t, os.Mkdir(path, 0o700))
					case "link":
						require.NoError(t, os.WriteFile(path+" of it", content, 0o600))
						require.NoError(t, os.Symlink(path+" of it", path))
					case "older copy":
						if old, ok := older[name]; ok {
							to.write(name, old)
						}
					}
					isUnread := damage == "unreadable" && (KindOf(name) != KindOther)
					refused, exported := to.examine(name, isUnread)
					if isUnread {
						to.cfg.FS = unreadable{to.cfg.FS, name}
					}
					err = to.start()
					to.kill()
					require.Equal(t, err == nil, refused == nil, "the start: %v; inspect: %v", err, refused)
					require.Equal(t, err == nil, exported == nil, "the start: %v; export: %v", err, exported)
					ofLog := KindOf(name) != KindOther
					switch damage {
					case "none":
						require.NoError(t, err)
					case "folder", "unreadable":
						require.Equal(t, ofLog || damage == "folder" && isOfLog(name), err != nil, "%v", err)
					case "link":
						require.Error(t, err)
					case "missing":
						require.Equal(t, ofLog && name != markName, err != nil, "%v", err)
					case "older copy":
						require.Equal(t, name == newest || name == first, err != nil, "%v", err)
					default:
						if name == newest || name == markName || KindOf(name) == KindCheckpoint {
							require.Error(t, err)
						}
					}
					if err != nil {
						require.Regexp(t, "repair|empty the folder|put a regular file|must be a regular file|chown", err.Error())
					}
				})
			}
		}
		if ending == "killed" {
			d.kill()
			d.mustStart()
			newest = d.newest()
			older[newest] = d.read(newest)
			publish()
		}
	}
}

// examine returns why inspect and export say that a start is refused.
func (d *disk) examine(name string, isUnread bool) (refused, exported error) {
	s, err := OpenSnapshot(d.dir)
	if err != nil {
		return err, err
	}
	defer s.Close()
	cfg := d.cfg
	cfg.FS = s
	if isUnread {
		cfg.FS = unreadable{s, name}
	}
	c, refused := Inspect(cfg.FS, cfg.BootID)
	if c.Refused != "" {
		refused = fmt.Errorf("%s", c.Refused)
	}
	_, exported = Export(cfg, io.Discard, time.Now())
	return refused, exported
}

// The folder cannot be written, or its lock is no regular file: each refusal names a remedy.
func TestAFolderThatCannotBeUsedNamesARemedy(t *testing.T) {
	for err, remedy := range map[error]string{
		syscall.EROFS: "mount the disk", syscall.EACCES: "chown", syscall.EPERM: "chown", syscall.ENOSPC: "free space",
	} {
		d := newDisk(t)
		failing := d.withFaults()
		failing["create"] = err
		require.ErrorContains(t, d.start(), remedy)
	}
	for name, make := range map[string]func(path string) error{
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":   func(path string) error { return os.Symlink("elsewhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			require.NoError(t, make(filepath.Join(d.dir, lockName)))
			require.ErrorContains(t, d.start(), "store.lock must be a regular file: remove it")
		})
	}
}
