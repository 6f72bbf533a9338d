package soak

import (
	"testing"

	"github.com/pubsubd/pubsubd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
