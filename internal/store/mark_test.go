package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// newest returns the name of the newest segment.
func (d *disk) newest() string {
	d.Helper()
	files := strings.Fields(d.files())
	name := files[len(files)-1]
	require.True(d, strings.HasSuffix(name, segmentSuffix), name)
	return strings.Repeat("0", 20+len(segmentSuffix)-len(name)) + name
}

// The newest segment is removed, cut, emptied or replaced by an older copy. The log that is left
// could be whole, but its mark says that it is not: a start is refused. After a repair, no offset
// is given again. With "never", a loss of power may have done it: the start announces the loss.
func TestALogThatEndsEarlyIsRefused(t *testing.T) {
	endings := []string{"killed", "without power", "in order"}
	for m, mode := range []SyncMode{SyncAlways, SyncEverySecond, SyncNever} {
		for e, ending := range endings {
			end := map[string]func(*disk){
				"killed": (*disk).kill, "without power": (*disk).powerOff,
				"in order": func(d *disk) { require.NoError(d, d.wal.close(time.Now())); d.cfg.BootID += "+" },
			}[ending]
			for i, damage := range []string{"removed", "empty", "cut", "cut within an entry", "an older copy"} {
				if (m+e+i)%exhaustive.Step(len(endings)) != 0 { // each pair of a mode, an ending and a damage
					continue
				}
				t.Run(fmt.Sprint(mode, ", ", ending, ", ", damage), func(t *testing.T) {
					d := newDisk(t)
					d.cfg.Sync = mode
					d.mustStart()
					d.publish("a", "0")
					require.NoError(t, d.wal.close(time.Now()))
					d.mustStart()
					name := d.newest()
					path, older := filepath.Join(d.dir, name), d.read(name)
					var last uint64
					for range 5 {
						last = d.publish("a", "1")
						d.wal.syncStep(time.Now())
					}
					d.wal.syncStep(time.Now())
					end(d)
					whole := d.read(name)
					switch damage {
					case "removed":
						require.NoError(t, os.Remove(path))
					case "empty":
						d.write(name, nil)
					case "cut":
						d.write(name, whole[:len(older)])
					case "cut within an entry":
						d.write(name, whole[:len(whole)-1])
					default:
						d.write(name, older)
					}
					c, err := d.inspect(), d.start()
					require.Equal(t, err == nil, c.Refused == "", "%v; %s", err, c.Refused)
					isGone := damage == "removed" || damage == "empty"
					switch {
					case mode == SyncNever && ending != "in order" && !isGone: // nothing of it was durable
						require.NoError(t, err)
						require.Equal(t, ending == "killed", d.found.Lost == 0)
					case mode == SyncNever && ending == "without power":
						require.NoError(t, err)
						require.NotZero(t, d.found.Lost)
						require.Equal(t, c.Lost, d.found.Lost, "inspect says it, too")
					case mode == SyncAlways || ending != "in order" || isGone:
						require.ErrorContains(t, err, "the log ends early: "+name)
						require.ErrorContains(t, err, "run `pubsubd store repair DIR`")
						require.ErrorContains(t, err, "--restored")
						require.NotEmpty(t, c.Damage)
						fallthrough
					default:
						require.Error(t, err)
						d.repair()
						require.Empty(t, d.inspect().Refused)
						d.mustStart()
					}
					if mode != SyncNever || isGone || ending != "killed" {
						require.Greater(t, d.publish("a", "2"), last)
					}
				})
			}
		}
	}
}

// An older version wrote the log: it has no mark. The daemon starts, and writes one: about a second
// after the disk has what it names, or at a clean stop.
func TestALogWithoutAMarkGetsOne(t *testing.T) {
	d := newDisk(t)
	path := filepath.Join(d.dir, markName)
	d.mustStart()
	d.publish("a", "1")
	d.wal.syncStep(time.Now())
	require.NoFileExists(t, path)
	d.wal.syncStep(time.Now())
	require.FileExists(t, path)
	d.kill()
	require.NoError(t, os.Remove(path))
	d.mustStart()
	require.NoError(t, d.wal.close(time.Now()))
	require.FileExists(t, path)
	require.NoError(t, os.Remove(path))
	d.mustStart()
	d.wantTopic("a", "1")
}

// A mark that cannot be read, or is that of another log, refuses the start.
func TestADamagedMarkRefusesTheStart(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("a", "1")
	require.NoError(t, d.wal.close(time.Now()))
	whole := d.read(markName)
	for i := range whole {
		changed := []byte(string(whole))
		changed[i] ^= 1
		d.write(markName, changed)
		require.Error(t, d.start(), "byte %d", i)
		d.write(markName, whole[:i])
		require.ErrorContains(t, d.start(), "store repair", "%d bytes", i)
	}
	d.repair()
	d.mustStart()
	require.Contains(t, readTopic(t, d.Broker, "a@EPOCH:0", 10), "1 gap(lost 1-")
}

// A mark cannot be written for a while. Publishes go on, and the older mark stays.
func TestAMarkThatCannotBeWrittenStopsNothing(t *testing.T) {
	d := newDisk(t)
	failing := d.withFaults()
	d.mustStart()
	for range 2 {
		d.publish("a", "1")
		d.wal.syncStep(time.Now())
	}
	before := d.read(markName)
	d.publish("a", "1")
	failing["create"] = os.ErrPermission
	d.wal.syncStep(time.Now())
	d.publish("a", "1")
	d.wal.syncStep(time.Now())
	require.Equal(t, before, d.read(markName))
	clear(failing)
	d.wal.syncStep(time.Now())
	require.NotEqual(t, before, d.read(markName))
	d.kill()
	d.mustStart()
	d.wantTopic("a", "1 2 3 4")
}

// A backup is made as deploy/README.md says, while clients publish and segments begin: the folder
// is listed, and then each file is linked, while the daemon syncs at any moment. The backup is
// whole, also once it was copied, and repair --restored starts it.
func TestABackupUnderPublishesIsWhole(t *testing.T) {
	for syncAt := range 8 {
		d := newDisk(t)
		d.cfg.segmentBytes = 350 // two messages
		d.mustStart()
		publish := func() {
			for range 3 {
				d.publish("a", strings.Repeat("1", 100))
			}
		}
		for range 3 {
			publish()
			d.wal.syncStep(time.Now())
		}
		names, err := d.cfg.FS.List()
		require.NoError(t, err)
		require.Contains(t, names, markName)
		backup := &disk{T: t, dir: filepath.Join(t.TempDir(), "backup"), cfg: d.cfg, config: d.config}
		backup.cfg.FS, err = OpenDir(backup.dir)
		require.NoError(t, err)
		for i, name := range names {
			publish()
			if i == syncAt {
				d.wal.syncStep(time.Now())
			}
			publish()
			require.NoError(t, os.Link(filepath.Join(d.dir, name), filepath.Join(backup.dir, name)))
		}
		publish()
		d.wal.syncStep(time.Now())
		c := backup.inspect()
		require.Empty(t, c.Refused)
		require.GreaterOrEqual(t, c.Messages, 9)
		last := d.publish("a", "1")
		d.kill()

		for _, name := range names { // cp -r: what the links have now
			b := backup.read(name)
			require.NoError(t, os.Remove(filepath.Join(backup.dir, name)))
			backup.write(name, b)
		}
		require.Empty(t, backup.inspect().Refused)
		backup.repair()
		backup.mustStart()
		require.Greater(t, backup.publish("a", "1"), last)
		backup.kill()
	}
}
