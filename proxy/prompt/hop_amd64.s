#include "textflag.h"

// The canonical characters behind a backslash are " \ b f n r t. Two lookups recognize one: its low nibble selects
// a set of high nibbles (1: 2, 2: 5, 4: 6, 8: 7), which must contain its high nibble.
DATA lowNibble<>+0(SB)/8, $0x00040008000D0000
DATA lowNibble<>+8(SB)/8, $0x0004000200000000
GLOBL lowNibble<>(SB), RODATA|NOPTR, $16

DATA highNibble<>+0(SB)/8, $0x0804020000010000
DATA highNibble<>+8(SB)/8, $0x0000000000000000
GLOBL highNibble<>(SB), RODATA|NOPTR, $16

DATA bytes<>+0(SB)/4, $0x0f205c22
GLOBL bytes<>(SB), RODATA|NOPTR, $4

// func hopAVX2(p *byte, n int) int
//
// Each block of 64 bytes becomes masks with a bit per byte. An addition whose carries run through sequences of
// backslashes finds the escaped bytes (Langdale, Lemire: Parsing Gigabytes of JSON per Second, 2019, 3.1.1).
//
// AX offset, CX n, SI p, DX 1 if the first byte of the block is escaped, DI the even bits
// Y0 quotes, Y1 backslashes, Y2 spaces, Y3 nibble mask, Y4 and Y5 nibble tables, Y6 zeros
TEXT ·hopAVX2(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	XORQ AX, AX
	XORQ DX, DX
	MOVQ $0x5555555555555555, DI
	VPBROADCASTB bytes<>+0(SB), Y0
	VPBROADCASTB bytes<>+1(SB), Y1
	VPBROADCASTB bytes<>+2(SB), Y2
	VPBROADCASTB bytes<>+3(SB), Y3
	VBROADCASTI128 lowNibble<>(SB), Y4
	VBROADCASTI128 highNibble<>(SB), Y5
	VPXOR Y6, Y6, Y6

block:
	LEAQ 64(AX), BX
	CMPQ BX, CX
	JA   end
	VMOVDQU (SI)(AX*1), Y7
	VMOVDQU 32(SI)(AX*1), Y8

	// R8: quotes
	VPCMPEQB  Y7, Y0, Y9
	VPCMPEQB  Y8, Y0, Y10
	VPMOVMSKB Y9, R8
	VPMOVMSKB Y10, R9
	SHLQ      $32, R9
	ORQ       R9, R8

	// R10: backslashes
	VPCMPEQB  Y7, Y1, Y9
	VPCMPEQB  Y8, Y1, Y10
	VPMOVMSKB Y9, R10
	VPMOVMSKB Y10, R9
	SHLQ      $32, R9
	ORQ       R9, R10

	// R11: control characters and non-ASCII, both less than a space if signed
	VPCMPGTB  Y7, Y2, Y9
	VPCMPGTB  Y8, Y2, Y10
	VPMOVMSKB Y9, R11
	VPMOVMSKB Y10, R9
	SHLQ      $32, R9
	ORQ       R9, R11

	// R12: what is not canonical behind a backslash
	VPAND     Y7, Y3, Y9
	VPSHUFB   Y9, Y4, Y9
	VPSRLW    $4, Y7, Y10
	VPAND     Y10, Y3, Y10
	VPSHUFB   Y10, Y5, Y10
	VPAND     Y9, Y10, Y9
	VPCMPEQB  Y9, Y6, Y9
	VPMOVMSKB Y9, R12
	VPAND     Y8, Y3, Y9
	VPSHUFB   Y9, Y4, Y9
	VPSRLW    $4, Y8, Y10
	VPAND     Y10, Y3, Y10
	VPSHUFB   Y10, Y5, Y10
	VPAND     Y9, Y10, Y9
	VPCMPEQB  Y9, Y6, Y9
	VPMOVMSKB Y9, R9
	SHLQ      $32, R9
	ORQ       R9, R12

	// R10: backslashes that are not escaped from before; R13: what follows a backslash
	MOVQ DX, R9
	NOTQ R9
	ANDQ R9, R10
	LEAQ (DX)(R10*2), R13

	// R9: escaped
	MOVQ R13, R9
	ORQ  DI, R9
	NOTQ R9
	ANDQ R10, R9 // runs of backslashes that start at odd bits
	ADDQ R10, R9
	SBBQ DX, DX
	NEGQ DX
	SHLQ $1, R9
	XORQ DI, R9
	ANDQ R13, R9

	// R8: where to stop. An escape that is not canonical stops at its backslash, which may be the byte before.
	ANDQ R9, R12
	NOTQ R9
	ANDQ R9, R8
	ORQ  R11, R8
	MOVQ R12, R13
	SHRQ $1, R13
	ORQ  R13, R8
	ANDQ $1, R12
	MOVQ R8, R13
	ORQ  R12, R13
	JNZ  stop
	MOVQ BX, AX
	JMP  block

stop:
	TESTQ R12, R12
	JNZ   before
	BSFQ  R8, R8
	ADDQ  R8, AX
	MOVQ  AX, ret+16(FP)
	VZEROUPPER
	RET

before:
	DECQ AX
	MOVQ AX, ret+16(FP)
	VZEROUPPER
	RET

end:
	SUBQ DX, AX
	MOVQ AX, ret+16(FP)
	VZEROUPPER
	RET
