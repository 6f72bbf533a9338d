package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/metrics"
)

// damaged returns a log with two messages in each of its segments, of which the second has a
// bad record.
func damaged(t *testing.T) *disk {
	d := newDisk(t)
	d.cfg.segmentBytes, d.cfg.leaseNumbers = 350, 100
	d.mustStart()
	for range 6 {
		d.publish("a", strings.Repeat("1", 100))
		d.wal.syncStep(time.Now())
	}
	require.Equal(t, "1.log 3.log 5.log", d.files())
	d.kill()
	b := d.read(segmentName(3))
	b[len(b)-1] ^= 1
	d.write(segmentName(3), b)
	return d
}

func (d *disk) repair() Recovery {
	d.Helper()
	found, err := Repair(d.cfg, d.config, metrics.New("test"))
	require.NoError(d, err)
	return found
}

// A start is refused. The operator looks at the files, and repairs the log. It keeps what can
// be read. Subscribers get a gap where messages are missing, and another at the end, since
// nobody knows what was there. The old files stay, with other names.
func TestADamagedLogIsRepaired(t *testing.T) {
	d := damaged(t)
	before := d.files()
	_, err := Verify(d.cfg)
	require.ErrorContains(t, err, segmentName(3)+" has a bad record at byte ")
	require.Equal(t, before, d.files())
	var to bytes.Buffer
	require.NoError(t, Inspect(d.cfg.FS, &to))
	require.Contains(t, to.String(), segmentName(1)+": segment after entry 0; epoch ")
	require.Contains(t, to.String(), `boot "boot 1"; lease 100; 2 entries, 1 to 2; `)
	require.Contains(t, to.String(), "1 entries, 3 to 3; "+fmt.Sprint(len(d.read(segmentName(3))))+" bytes; at byte ")
	require.Contains(t, to.String(), "its checksum does not match")
	require.ErrorContains(t, Export(d.cfg, d.config, metrics.New("test"), io.Discard), "bad record")

	found := d.repair()
	require.EqualValues(t, 6, found.Last)
	require.EqualValues(t, 100, found.Lost)
	require.Contains(t, d.files(), "1.log.old 3.log.old 5.log.old 100.checkpoint 101.log")
	d.mustStart()
	d.wantTopic("a", "1 2 3 gap(lost 3-4) 5 6 gap(lost 6-100)")
	require.EqualValues(t, 102, d.publish("a", "1"))
	require.Contains(t, d.files(), "1.log.old")
}

// The same for a missing file, a checkpoint, and what follows a checkpoint.
func TestEveryDamageCanBeRepaired(t *testing.T) {
	remove := func(d *disk, name string) { require.NoError(d, os.Remove(filepath.Join(d.dir, name))) }
	for name, c := range map[string]struct {
		damage func(d *disk)
		want   string
	}{
		"a first file":  {func(d *disk) { remove(d, segmentName(1)) }, "gap(lost 0-2) 3 gap(lost 3-4) 5 6 gap(lost 6-100)"},
		"a middle file": {func(d *disk) { remove(d, segmentName(3)) }, "1 2 gap(lost 2-4) 5 6 gap(lost 6-100)"},
		"a last header": {func(d *disk) { d.write(segmentName(5), d.read(segmentName(5))[:30]) }, "1 2 3 gap(lost 3-100)"},
		"a checkpoint": {func(d *disk) {
			d.repair()
			name := fileName(100, checkpointSuffix)
			b := d.read(name)
			d.write(name, b[:len(b)-noticeBytes-1])
		}, "1 2 3 gap(lost 3-4) 5 gap(lost 5-200)"}, // message 6 was at its end
		"a segment after a checkpoint": {func(d *disk) {
			d.repair()
			remove(d, segmentName(101))
		}, fmt.Sprintf("1 2 3 gap(lost 3-4) 5 6 gap(lost 6-%d)", 100+leaseUnknown)},
	} {
		t.Run(name, func(t *testing.T) {
			d := damaged(t)
			c.damage(d)
			require.Error(t, d.start())
			epoch := d.found.Epoch
			d.repair()
			d.mustStart()
			require.Equal(t, epoch, d.Epoch("a"))
			d.wantTopic("a", c.want)
		})
	}
}

// An operator checks a backup, and writes its messages. Neither changes anything.
func TestAHealthyLogIsVerifiedAndExported(t *testing.T) {
	d := newDisk(t)
	d.mustStart()
	d.publish("a", "1")
	d.checkpoint()
	d.publish("b", `{"n":2}`)
	_, err := Verify(d.cfg)
	require.ErrorContains(t, err, "in use by another daemon")
	d.kill()
	before := d.files()
	found, err := Verify(d.cfg)
	require.NoError(t, err)
	require.EqualValues(t, 2, found.Last)
	require.Zero(t, found.Lost)
	d.cfg.BootID = "boot 2"
	found, err = Verify(d.cfg)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, found.Lost, "a start would announce it")
	var to bytes.Buffer
	require.NoError(t, Export(d.cfg, d.config, metrics.New("test"), &to))
	require.Contains(t, to.String(), `{"position":"a@`+found.Epoch+`:1","time":`)
	require.Contains(t, to.String(), `"data":{"n":2}}`+"\n")
	require.Equal(t, 2, strings.Count(to.String(), "\n"))
	to.Reset()
	require.NoError(t, Inspect(d.cfg.FS, &to))
	require.Contains(t, to.String(), "checkpoint as of entry 1; epoch "+found.Epoch)
	require.Equal(t, before, d.files())
}
