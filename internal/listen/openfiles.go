package listen

import (
	"go.uber.org/zap"
)

// OpenFiles is how many files the process may have open, connections among them; 0:
// unknown, and no bound.
type OpenFiles int

// AdminConnections bounds the connections of the admin listener: scrapers, probes and
// people need fewer.
const AdminConnections = 100

// reserve is how many files are not for clients: listeners, the admin listener's
// connections, calls of hooks, the state file, the second descriptor that a connection
// has on its way to the lane and back.
func (f OpenFiles) reserve() int { return min(int(f)/4, minReserve+int(f)/64) }

const minReserve = 2*AdminConnections + 56

// Connections returns how many connections clients may have if the settings say
// configured; 0 stands for as many as there are files for.
func (f OpenFiles) Connections(configured int) int {
	if configured == 0 && f > 0 {
		return int(f) - f.reserve()
	}
	return configured
}

// Log logs the bound, and warns if the settings allow more connections than fit.
func (f OpenFiles) Log(log *zap.Logger, configured int) {
	if f == 0 {
		return
	}
	fit := f.Connections(0)
	log.Info("files", zap.Int("open_files", int(f)), zap.Int("for_connections", f.Connections(configured)))
	if configured > fit {
		log.Warn("limits.connections is more than there are files for: raise the limit of open files (ulimit -n, LimitNOFILE), or lower it",
			zap.Int("limits.connections", configured), zap.Int("open_files", int(f)), zap.Int("fit", fit))
	}
}
