module terrane-ethdb

go 1.25.0

require (
	github.com/ethereum/go-ethereum v1.17.10
	terrane v0.0.0
)

require (
	github.com/holiman/uint256 v1.3.2 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace terrane => ../go
