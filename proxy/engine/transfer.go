package engine

import "bytes"

// TransferParams returns the object that a prefill engine of vLLM tells the decode engine, or nil.
// It is a part of body.
func TransferParams(body []byte) []byte {
	for name, value := range membersOf(body) {
		if string(name) == "kv_transfer_params" && value[0] == '{' && !isBlank(value) {
			return value
		}
	}
	return nil
}

// BeginsWithError reports whether the first event of a stream is an error. A part of an event is
// none.
func BeginsWithError(p []byte) bool {
	for line := range bytes.Lines(p) {
		data, found := bytes.CutPrefix(line, dataField)
		if !found {
			continue
		}
		for name, value := range membersOf(data) {
			if string(name) == "error" && !isBlank(value) {
				return true
			}
		}
		return false
	}
	return false
}
