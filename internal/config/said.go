package config

// Said is a Config and where each of its settings came from, as Loader.Read
// returns it.
type Said struct {
	Config
	origin map[string]string // by key; what is not there is a default
}
