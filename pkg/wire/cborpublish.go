package wire

// CBORType is the media type of one CBOR item, and of a message that JSON has no
// words for.
const CBORType = "application/cbor"

// SetCBOR makes body, which is published as CBOR, the message's payload: JSON, if
// JSON has words for it, and otherwise CBORType. The message keeps body, and nothing
// of it is set if the error says that this is no such item (see CheckCBOR), or wraps
// what CompactJSON refuses.
func (m *Message) SetCBOR(body []byte) error {
	model, err := CheckCBOR(body)
	if err != nil {
		return err
	}
	if model == CBORHasJSON {
		text, _ := EmbeddedJSON(body)
		if body, err = CompactJSON(text); err != nil {
			return err
		}
	}
	m.Data, m.Type, m.CBOR = body, "", model == CBORIsJSON
	if model == CBOROnly {
		m.Type = CBORType
	}
	return nil
}
