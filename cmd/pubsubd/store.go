package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/pubsubd/pubsubd/internal/store"
)

func storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Inspect, verify, repair and export the log of a daemon with --store",
		Long: `Look into the folder that the setting store.dir (--store) names: the log in which a
daemon keeps its topics over crashes.

inspect, verify and export change nothing. They read the folder as it is when they
begin, so a daemon may use it meanwhile. repair needs the folder for itself.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(inspectStoreCommand(), verifyStoreCommand(), repairStoreCommand(), exportStoreCommand())
	return cmd
}

// onStore makes a command about the folder DIR.
func onStore(cmd *cobra.Command, run func(dir string, out io.Writer) error) *cobra.Command {
	cmd.Args = usageArgs(cobra.ExactArgs(1))
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(args[0], cmd.OutOrStdout()) }
	return cmd
}

func inspectStoreCommand() *cobra.Command {
	var asJSON bool
	cmd := onStore(&cobra.Command{
		Use:   "inspect DIR",
		Short: "Say what a log has: topics, messages, files, and what a start would do",
		Long: `Read a log, and say what it has: the epoch, the number of the newest entry, the lease
(every number that was used is below it), topics, messages and idempotency keys, how
the last daemon ended, what the next start would do, and each file.

The daemon drops messages that have expired, or exceed the limits of histories, when
it starts. inspect counts them, since the log does not know these limits.`,
		Example: `  pubsubd store inspect /var/lib/pubsubd/store
  pubsubd store inspect /var/lib/pubsubd/store --json | jq '.files[].name'`,
	}, func(dir string, out io.Writer) error {
		c, err := inspectStore(dir)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(out).Encode(c)
		}
		return describeStore(out, &c)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// openStore returns what the folder of a log has now. It makes no folder.
func openStore(dir string) (store.Snapshot, error) {
	const remedy = "name the folder that is the daemon's store.dir"
	files, err := store.OpenSnapshot(dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w (only the user of the daemon and root can read a log)", err)
	case err != nil:
		return nil, fmt.Errorf("%w (%s)", err, remedy)
	}
	names, err := files.List()
	isOfLog := func(name string) bool { return store.KindOf(name) != store.KindOther }
	if err != nil || !slices.ContainsFunc(names, isOfLog) {
		return nil, errors.Join(err, files.Close(), fmt.Errorf("%s has no log: %s", dir, remedy))
	}
	return files, nil
}

func inspectStore(dir string) (store.Contents, error) {
	files, err := openStore(dir)
	if err != nil {
		return store.Contents{}, err
	}
	defer files.Close()
	return store.Inspect(files, store.BootID())
}

// describeStore says in words what a log has.
func describeStore(out io.Writer, c *store.Contents) error {
	table := newTable(out)
	fmt.Fprintf(table, "epoch\t%s\n", c.Epoch)
	fmt.Fprintf(table, "newest entry\t%d; every number that was used is below the lease, %d\n", c.Last, c.Lease)
	fmt.Fprintf(table, "topics\t%d, with %d messages of %d bytes\n", c.Topics, c.Messages, c.Bytes)
	fmt.Fprintf(table, "idempotency keys\t%d\n", c.Keys)
	fmt.Fprintf(table, "last daemon\t%s\n", lastDaemon(c))
	fmt.Fprintf(table, "next start\t%s\n\n", nextStart(c))
	fmt.Fprintln(table, "FILE\tKIND\tBYTES\tENTRIES\tNUMBERS\tREMARK")
	for _, f := range c.Files {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\n", printable(f.Name), f.Kind, f.Bytes, f.Entries, numbersOf(&f), remarkOf(&f))
	}
	return table.Flush()
}

func lastDaemon(c *store.Contents) string {
	switch {
	case c.Clean:
		return "stopped cleanly"
	case c.SameBoot:
		return "still runs, or was killed; the machine was not restarted since"
	}
	return "did not end in order, and the machine was restarted since, or is another one"
}

func nextStart(c *store.Contents) string {
	switch {
	case c.Refused != "":
		return "is refused: " + c.Refused
	case c.Lost > 0:
		return fmt.Sprintf("recovers entries up to %d, and announces to subscribers that others up to %d may be lost", c.Last, c.Lost)
	case c.Cut > 0:
		return fmt.Sprintf("recovers all entries; it ignores %d bytes at the end, of an entry that nobody has seen", c.Cut)
	}
	return "recovers all entries"
}

func numbersOf(f *store.FileContents) string {
	switch {
	case f.Kind == store.KindCheckpoint:
		return fmt.Sprintf("up to %d", f.After)
	case f.Entries == 0:
		return "-"
	}
	return fmt.Sprintf("%d to %d", f.First, f.Last)
}

func remarkOf(f *store.FileContents) string {
	switch {
	case f.Bad != nil:
		return fmt.Sprintf("cannot be read from byte %d on: %s", f.Bad.Offset, f.Bad.Why)
	case f.Closed:
		return "stopped cleanly"
	case f.Lost > 0:
		return fmt.Sprintf("announces a loss up to %d", f.Lost)
	}
	return "-"
}

func verifyStoreCommand() *cobra.Command {
	var asJSON bool
	cmd := onStore(&cobra.Command{
		Use:   "verify DIR",
		Short: "Read a whole log, and say what is damaged",
		Long: `Read each file of a log, as a start does. The exit code is 0 if a daemon would start
with it, and 1 if not. Then each damage is printed, with its file and offset.

A crash is no damage: an incomplete entry at the end of the log is ignored by the
next start.`,
		Example: `  pubsubd store verify /backup/pubsubd && echo the backup is good`,
	}, func(dir string, out io.Writer) error {
		c, err := inspectStore(dir)
		if err == nil && asJSON {
			err = json.NewEncoder(out).Encode(c)
		}
		switch {
		case err != nil:
			return err
		case c.Refused != "":
			return showDamage(&c)
		case !asJSON:
			fmt.Fprintf(out, "ok: %d files, entries up to %d, %d messages in %d topics; a start %s\n", len(c.Files), c.Last, c.Messages, c.Topics, nextStart(&c))
		}
		return nil
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what inspect --json prints; the exit code is the same")
	return cmd
}

// showDamage returns why a start is refused, after it has printed each damage.
func showDamage(c *store.Contents) error {
	for _, d := range c.Damage {
		fmt.Fprintln(os.Stderr, d)
	}
	return errors.New(c.Refused)
}

func repairStoreCommand() *cobra.Command {
	var yes, restored bool
	cmd := onStore(&cobra.Command{
		Use:   "repair DIR",
		Short: "Keep what can be read of a damaged log, and announce the rest as lost",
		Long: `Say what is damaged, what a repair keeps, and what it drops. With --yes, repair the log:
write what can be read into a new checkpoint, so that the daemon starts again. Where
entries are missing, subscribers get a gap with the reason "lost". The epoch stays.

The old files stay beside the new ones. Their names end with .old. Remove them when you
no longer need them. A deletion may be among the lost entries: then the messages that
it removed are there again.

Use --restored for a folder that you have copied back from a backup. Clients may have
messages that are newer than the backup. The repair announces them as lost, and their
offsets are not used again.

Stop the daemon first. The machine needs memory for all messages of the log.`,
		Example: `  pubsubd store repair /var/lib/pubsubd/store
  pubsubd store repair /var/lib/pubsubd/store --yes
  pubsubd store repair /var/lib/pubsubd/store --restored --yes`,
	}, func(dir string, out io.Writer) error { return repairStore(dir, yes, restored, out) })
	cmd.Flags().BoolVar(&yes, "yes", false, "repair the log")
	cmd.Flags().BoolVar(&restored, "restored", false, "the folder was restored from a backup: what came after the backup is lost, even if nothing is damaged")
	return cmd
}

func repairStore(dir string, yes, restored bool, out io.Writer) error {
	c, err := inspectUnused(dir)
	if err != nil {
		return err
	}
	switch {
	case c.Refused == "" && !restored:
		fmt.Fprintf(out, "Nothing to repair: a start %s. If the folder was restored from a backup, add --restored.\n", nextStart(&c))
		return nil
	case c.Refused != "" && len(c.Damage) == 0:
		return fmt.Errorf("a repair cannot help: %s", c.Refused)
	}
	if err := describeRepair(out, &c); err != nil {
		return err
	}
	if !yes {
		return usageError{errors.New("nothing was changed: add --yes to repair the log")}
	}
	files, err := store.OpenDir(dir)
	if err != nil {
		return err
	}
	_, err = store.Repair(store.WALConfig{FS: files, BootID: store.BootID(), Seed: rand.Uint64, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("the log was not repaired: %w", err)
	}
	fmt.Fprintln(out, "The log was repaired. The names of the old files end with .old.")
	return nil
}

// inspectUnused is inspectStore for a log that no daemon uses.
func inspectUnused(dir string) (c store.Contents, err error) {
	snapshot, err := openStore(dir)
	if err != nil {
		return c, err
	}
	defer snapshot.Close()
	files, err := store.OpenDir(dir)
	if err != nil {
		return c, err
	}
	lock, err := files.Lock()
	if err != nil {
		return c, fmt.Errorf("nothing was changed: %w", err)
	}
	defer lock.Close()
	return store.Inspect(snapshot, store.BootID())
}

func describeRepair(out io.Writer, c *store.Contents) error {
	text := bufio.NewWriter(out)
	damage, drops, announces := "Damage:", "all entries that follow a damage in its file, and those of missing files", "for each damage, and one after the newest message"
	if len(c.Damage) == 0 {
		damage, drops, announces = "Damage: none", "nothing", "after the newest message"
	}
	fmt.Fprintln(text, damage)
	for _, d := range c.Damage {
		fmt.Fprintln(text, " ", d)
	}
	fmt.Fprintf(text, "Keeps: %d messages of %d bytes in %d topics, %d idempotency keys.\n", c.Messages, c.Bytes, c.Topics, c.Keys)
	fmt.Fprintf(text, "Drops: %s.\n", drops)
	fmt.Fprintf(text, "Announces: subscribers of every topic get a gap, lost, %s.\n", announces)
	return text.Flush()
}

func exportStoreCommand() *cobra.Command {
	return onStore(&cobra.Command{
		Use:   "export DIR",
		Short: "Write the messages of a log as NDJSON",
		Long: `Write the messages of a log on standard output: a JSON object a line, as the daemon
sends them to subscribers. Those of a topic come in order. Messages that were deleted, or
whose ttl is over, are left out. Limits of histories are not applied.

A damaged log is refused. Copy its folder, repair the copy, and export that.`,
		Example: `  pubsubd store export /var/lib/pubsubd/store > messages.ndjson`,
	}, func(dir string, out io.Writer) error {
		files, err := openStore(dir)
		if err != nil {
			return err
		}
		defer files.Close()
		buffered := bufio.NewWriter(out)
		_, err = store.Export(store.WALConfig{FS: files, BootID: store.BootID()}, buffered, time.Now())
		return errors.Join(err, buffered.Flush())
	})
}
