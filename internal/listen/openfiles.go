package listen

import "go.uber.org/zap"

// OpenFiles is how many files, including connections, the process may have open. 0: the
// limit is not known, and nothing is bounded.
type OpenFiles int

// AdminConnections bounds the connections of the admin listener. Scrapers, probes and
// people need fewer.
const AdminConnections = 100

// minReserve is how many files are not for clients. They are for listeners, connections of
// the admin listener, calls of hooks and the files of the log. A connection also has a second
// descriptor while it moves to the lane or back.
const minReserve = 2*AdminConnections + 56

// Connections returns how many connections clients may have: configured, or as many as
// the files allow if that is 0.
func (f OpenFiles) Connections(configured int) int {
	if configured == 0 && f > 0 {
		return int(f) - min(int(f)/4, minReserve+int(f)/64)
	}
	return configured
}

// Log logs the limit. It warns if the settings allow more connections than files.
func (f OpenFiles) Log(log *zap.Logger, configured int) {
	if f == 0 {
		return
	}
	fit := f.Connections(0)
	log.Info("files", zap.Int("open_files", int(f)), zap.Int("for_connections", f.Connections(configured)))
	if configured > fit {
		log.Warn("limits.connections needs more open files than the process may have: raise the limit of open files (ulimit -n, LimitNOFILE), or lower limits.connections",
			zap.Int("limits.connections", configured), zap.Int("open_files", int(f)), zap.Int("fit", fit))
	}
}
