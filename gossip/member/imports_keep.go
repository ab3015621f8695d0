package member

import _ "github.com/hashicorp/memberlist" // used from the next commit on
