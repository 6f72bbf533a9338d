package main

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAJournalKeepsEachEntryOnceAndTheNewest(t *testing.T) {
	j := &journal{}
	for i := range mostEntries + 1 {
		n, added := j.store(entry{strconv.Itoa(i), i})
		require.True(t, added)
		require.Equal(t, i, n)
	}
	require.Len(t, j.entries, mostEntries)
	require.Equal(t, 1, j.first)
	require.Equal(t, 1, j.entries[0].value)
	_, added := j.store(entry{strconv.Itoa(mostEntries), "again"})
	require.False(t, added, "a page sends an entry again when it got no answer")

	b := &backend{}
	for i := range mostJournals + 1 {
		b.newJournal(strconv.Itoa(i))
	}
	require.Len(t, b.journals, mostJournals)
	require.Equal(t, strconv.Itoa(mostJournals), b.journals[mostJournals-1].topic)
}
