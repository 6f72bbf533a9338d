package config

import (
	"regexp"
	"strings"
)

// fromKubernetes holds for the variables that Kubernetes sets in every pod beside
// a Service that is named pubsubd, or pubsubd-admin and the like.
func fromKubernetes(name, text string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(name, envPrefix), "SERVICE_")
	return name == envPrefix+"SERVICE_HOST" || rest == "PORT" || strings.HasPrefix(rest, "PORT_") ||
		otherService.MatchString(name) || strings.HasSuffix(name, "_PORT") && isURL.MatchString(text)
}

// What Kubernetes sets for a Service of a longer name than ours. Its _PORT alone is
// known by what it holds: it might be somebody's idea of a setting of ours.
var (
	otherService = regexp.MustCompile("^" + envPrefix +
		"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
	isURL = regexp.MustCompile("^(tcp|udp|sctp)://")
)
