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
		Long: `Examine the folder of the setting store.dir (--store). It holds the log in which a daemon
keeps its topics across crashes.

inspect, verify and export change nothing. They read the folder as it is when they
begin, so a daemon may use it at the same time. repair needs exclusive access.`,
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
		Short: "Show what a log holds: topics, messages, files, and what a start would do",
		Long: `Read a log, and show what it holds: topics, messages, idempotency keys, the epoch, the
number of the newest entry, and the lease (all numbers in use are below it). It also
shows how the last daemon ended, what the next start would do, and each file.

inspect also counts messages that have expired or exceed the limits of histories,
because the log does not know these limits. The daemon drops them when it starts.`,
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

// openStore returns what the folder of a log has now. It does not create the folder.
func openStore(dir string) (store.Snapshot, error) {
	const remedy = "give the folder of the daemon's setting store.dir"
	files, err := store.OpenSnapshot(dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w (only the user of the daemon and root can read a log)", err)
	case err != nil:
		return nil, fmt.Errorf("%w (%s)", err, remedy)
	}
	names, err := files.List()
	if slices.Contains(names, store.UsedName) {
		return nil, errors.Join(files.Close(), fmt.Errorf("%s has no log now: a daemon with store.sync: stop runs, or has crashed. "+
			"It writes the log when it stops; after a crash, the next start begins a new epoch", dir))
	}
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
	fmt.Fprintf(table, "newest entry\t%d%s; every number that was used is below the lease, %d\n", c.Last, newestAt(c), c.Lease)
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

// newestAt says when the newest message was published.
func newestAt(c *store.Contents) string {
	if c.Newest == 0 {
		return ""
	}
	return " (newest message published at " + time.UnixMilli(c.Newest).UTC().Format(time.RFC3339) + ")"
}

func lastDaemon(c *store.Contents) string {
	switch {
	case c.Clean:
		return "stopped cleanly"
	case c.SameBoot:
		return "still runs, or was killed; the machine has not restarted since"
	}
	return "was killed or crashed, and the machine has restarted since, or is another one"
}

func nextStart(c *store.Contents) string {
	switch {
	case c.Refused != "":
		return "is refused: " + c.Refused
	case c.Lost > 0:
		return fmt.Sprintf("recovers entries up to %d, and announces to subscribers that entries up to %d may be lost", c.Last, c.Lost)
	case c.Cut > 0:
		return fmt.Sprintf("recovers all entries; it ignores %d bytes at the end, of an entry that no client has seen", c.Cut)
	}
	return "recovers all entries"
}

func numbersOf(f *store.FileContents) string {
	switch {
	case f.Kind == store.KindCheckpoint:
		return fmt.Sprintf("up to %d", f.After)
	case f.Kind == store.KindMark:
		return fmt.Sprintf("up to %d", f.Last)
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
		Short: "Check a whole log, and list the damage",
		Long: `Read each file of a log, as a start does. The exit code is 0 if a daemon would start
with the log, and 1 if not. In that case, print each damage with its file and offset. A log
that ends earlier than its file "mark" says is damaged, for example a copy that was cut short.

The time of the newest message shows how old a backup is. An older copy of the whole folder
does not count as damage: after you restore it, run repair --restored.

An incomplete entry at the end of the log is not damage, but the trace of a crash. The
next start ignores it.`,
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
			fmt.Fprintf(out, "ok: %d files, entries up to %d%s, %d messages in %d topics; a start %s\n", len(c.Files), c.Last, newestAt(&c), c.Messages, c.Topics, nextStart(&c))
		}
		return nil
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the output of inspect --json; the exit code is the same")
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
		Short: "Keep the readable part of a damaged log, and announce the rest as lost",
		Long: `Show what is damaged, what a repair keeps, and what it drops. With --yes, repair the log:
write everything readable into a new checkpoint, so that the daemon starts again. Where
entries are missing, subscribers get a gap with the reason "lost". The epoch
stays the same.

The old files stay beside the new ones, with names that end with .old. Remove them when
you no longer need them. If a deletion is among the lost entries, the messages that it
removed reappear.

Use --restored for a folder that you have copied back from a backup. Clients may have
messages that are newer than the backup. The repair announces them as lost, and never
uses their offsets again.

Stop the daemon first. The machine needs memory for all messages of the log.`,
		Example: `  pubsubd store repair /var/lib/pubsubd/store
  pubsubd store repair /var/lib/pubsubd/store --yes
  pubsubd store repair /var/lib/pubsubd/store --restored --yes`,
	}, func(dir string, out io.Writer) error { return repairStore(dir, yes, restored, out) })
	cmd.Flags().BoolVar(&yes, "yes", false, "repair the log")
	cmd.Flags().BoolVar(&restored, "restored", false, "the folder comes from a backup: announce messages after the backup as lost, even if nothing is damaged")
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
	damage, drops, announces := "Damage:", "all entries after a damage in its file, and those of missing files", "for each damage, and one after the newest message"
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
		Long: `Write the messages of a log to standard output, each topic's in order: one JSON object on
each line, as the daemon sends them to subscribers. The export leaves out deleted messages
and those whose ttl has passed, but it does not apply the limits of histories.

export refuses a damaged log. Copy its folder, repair the copy, and export that.`,
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
