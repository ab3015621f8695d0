package member

// ParseKeys reads keys in either form of Config.KeyringFile, the primary first:
// at least one, each valid. The text of a key never appears in an error.
func ParseKeys(text []byte) ([][]byte, error) { return parseKeyring(text) }
