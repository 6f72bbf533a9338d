package loadtest

import "fmt"

// spareFiles is for what a process has open besides its connections: standard
// streams, listeners, epoll, files being read.
const spareFiles = 64

// checkOpenFiles makes sure, before any connection is made, that this process may
// have so many, and with it a server started as its child, which has as many. It
// raises the soft limit if the hard one allows.
func checkOpenFiles(connections int) error {
	needed := uint64(connections) + spareFiles
	limit, err := raiseOpenFiles(needed)
	if err != nil {
		return fmt.Errorf("limit of open files: %w", err)
	}
	if limit < needed {
		return fmt.Errorf("the test needs %d open files (%d connections and %d others), but the limit in force is %d: "+
			"raise it with `ulimit -n %d`, or LimitNOFILE=%d in a systemd unit; or use fewer clients; "+
			"or distribute the clients of a broadcast or a steady run with --processes or --agents, if the --target may open as many files",
			needed, connections, spareFiles, limit, needed, needed)
	}
	return nil
}
