package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// failureCase is a failure of real systems that must not happen here.
type failureCase struct {
	title string
	// tests fail when the behaviour is wrong: DIRECTORY.TestName, the root being
	// main, or a script.
	tests string
}

// failureCases are the cases G1 to G48, by number.
var failureCases = map[int]failureCase{
	// Framing and handshake.
	1: {title: "ping inside a fragmented message", tests: `hub.TestPingInsideFragments hub/wire.TestDecoderVectors hub/wire.FuzzDecoder`},
	2: {title: "unmasked client frame", tests: `hub.TestBadFrames hub.TestUnmaskedFrameIsNotObeyed hub/wire.TestDecoderRefuses`},
	3: {title: "lying 64-bit length", tests: `hub.TestBadFrames hub/wire.TestDecoderRefuses hub/wire.TestDecoderLimitsTheSum hub/wire.TestDecoderMemory`},
	4: {title: "several frames in one segment, then silence", tests: `hub.TestManyMessagesInOneSegment hub/poll.TestDataThenEnd`},
	5: {title: "half a frame parks a loop", tests: `hub.TestHalfFramesParkNobody hub.TestUnfinishedFrameEnds hub.TestUnfinishedMessageEnds`},
	6: {title: "slow or endless handshake", tests: `hub.TestSlowAndEndlessHandshakes hub.TestConnectDeadline hub.TestSlotsComeBack main.TestSlowTLSHandshake`},
	7: {title: "two writers on one connection", tests: `hub.TestFramesOfAllKindsOnASlowSocket hub.TestNothingBehindAFailedWrite hub.TestHandover
		hub.TestSweepOneWrite hub.TestBuffersAndDescriptorsChangeHands`},
	8: {title: "half-open TCP", tests: `hub.TestHalfOpenConnectionEnds hub.TestPings hub.TestStalledIsNotDead hub.TestOldConnectionEndsLate
		hub/poll.TestSilentHost hub/poll.TestStalledReader`},
	9:  {title: "codes that must not be on the wire", tests: `hub.TestBadFrames hub.TestVanishedClientGetsNoCode hub.TestAPIRefusals hub/wire.TestAppendClose hub/wire.TestParseClose`},
	10: {title: "descriptor number reused", tests: `hub/poll.TestStaleEvent hub/poll.TestChurn hub/poll.TestDetachClosedAcceptor hub.TestBuffersAndDescriptorsChangeHands`},

	// Authentication.
	11: {title: "algorithm from the token", tests: `auth.TestAlgorithmFromTheToken auth.TestAlgorithmsFollowTheKey auth.TestSetKeys`},
	12: {title: "no exp, odd exp, skewed clocks; expired hiding forged", tests: `auth.TestTime auth.TestExpiredNeverHidesAnything auth.TestExpiredAgreesWithConnection
		auth.TestNewRefuses hub.TestExpiredForgeryIsForged`},
	13: {title: "empty or placeholder secret", tests: `auth.TestNewRefuses hub.TestValidateRefuses testdata/script/config_secrets.txtar testdata/script/config_mistakes.txtar`},
	14: {title: "audience forms", tests: `auth.TestAudienceAndIssuer`},
	15: {title: "expiry and revocation of a live connection",
		tests: `hub.TestTokenExpiry hub.TestNothingAfterTheTokenEnds hub.TestSubscriptionTokenExpiry hub.TestFarExpiry auth.TestRevokes
		hub.TestRevocations hub.TestNothingAfterRevocation hub.TestRevocationDuringConnect hub.TestRevocationsSurvive hub.TestRevalidationIsSpread hub.TestClocksThatMove
		loadtest.TestScenarios loadtest.TestNotEnded loadtest.TestCheckedFigures`},
	16: {title: "cross-site sockets", tests: `auth.TestOrigins auth.TestParseOriginsRefuses auth.TestLoopbackOrigins hub.TestOrigins hub.TestOriginOnEveryWay hub.TestRestOrigins`},
	17: {title: "token in the URL", tests: `hub.TestTokensStaySecret hub/wire.TestRefusalsDoNotEcho hub.TestRefusedTokens testdata/script/serve_development.txtar`},
	18: {title: "key rotation and kid", tests: `auth.TestKid auth.TestTrustsAfterRotation auth.TestRotationUnderLoad auth.TestUnknownKid auth.TestKidFlood auth.TestSlowServer
		auth.TestSecretRotation hub.TestRemovedKey loadtest.TestScenarios`},

	// Rate and connection limits.
	19: {title: "forwarded address trusted blindly", tests: `ratelimit.TestClientAddr ratelimit.FuzzClientAddr ratelimit.TestParseProxies hub.TestForwardedAddresses
		hub.TestForwardedRequests hub.TestForwardedAddressInTheLog hub.TestNamedVictimIsNotLockedOut`},
	20: {title: "IPv6 neighbours", tests: `ratelimit.TestAddressesThatShareACap ratelimit.TestGateAddresses hub.TestForwardedAddresses hub.TestForwardedIPv6`},
	21: {title: "limiter table grows for ever", tests: `ratelimit.TestMillionAddresses ratelimit.TestGateBound ratelimit.TestGateShrinks ratelimit.TestSlotsForgetAddresses`},
	22: {title: "connection slot leaks", tests: `hub.TestSlotsComeBack hub.TestSimultaneousHandshakes hub.TestPanicInSetupFreesTheSlot hub.TestPanicInConnectFreesTheSlot
		ratelimit.TestSlotsDoNotLeak ratelimit.TestSlotsConcurrently`},
	23: {title: "reconnect stampede", tests: `hub.TestDrain hub.TestHandshakesAtOnce hub.TestStampedeOfRecoveries hub.TestUpgradeWhileDraining hub.TestReconnectFrame
		main.TestReadmeWarns`},
	24: {title: "zero as a rate", tests: `ratelimit.TestBucket ratelimit.TestZeroIsOff ratelimit.TestGateOddLimits ratelimit.TestFractionalRate ratelimit.TestBothOrNone
		hub.TestEveryLimitIsOff hub.TestValidateAccepts hub.TestValidateRefuses`},

	// SQLite.
	25: {title: "read, then write, in one transaction", tests: `store.TestWriterBeginsByWriting store.TestWriterWaitsForAnother store.TestPragmasOnEveryConnection store.TestFaultAtEachStage`},
	26: {title: "PRAGMAs that reach one connection", tests: `store.TestPragmasOnEveryConnection store.TestWALKeepsNoMoreThanItsLimit store.TestFirstOpens store.TestManyOpens`},
	27: {title: "WAL without bound", tests: `store.TestWALIsBounded store.TestForgottenReader store.TestReadersHonourContext store.TestLargeWALIsTold store.TestWALKeepsNoMoreThanItsLimit
		store.TestWALShrinksAfterBackup hub.TestWALIsAMetric`},
	28: {title: "WAL-reset corruption", tests: `store.TestSQLiteVersion store.TestPragmasOnEveryConnection main.TestLibcIsTheDrivers`},
	29: {title: "opening the database file ourselves", tests: `main.TestNobodyOpensDatabases`},
	30: {title: "disk full", tests: `main.TestFullDisk store.TestDiskFull store.TestDiskFullWhileOperating store.TestRegistryDiskFull store.TestLastingFault store.TestFaultAtEachStage
		store.TestOperationFaultAtEachStage hub.TestReadiness hub.TestLogOnAFullDisk`},
	31: {title: "backup by copying", tests: `store.TestBackupWhileWriting store.TestRestoredCopyHasAnotherEpoch store.TestBackupReplacesLeftovers store.TestBackupFails
		testdata/script/backup.txtar main.TestReadmeWarns`},
	32: {title: "migration cut in half", tests: `store.TestMigrate store.TestKilledMigration store.TestForeignAndNewerFilesAreRefused store.TestForeignAndNewerRegistriesAreRefused`},
	33: {title: "writer queue without a bottom", tests: `store.TestStuckWriter hub.TestStuckDiskIsTold hub.TestWaitingCommands hub.TestRestOverload store.TestIdempotency`},
	34: {title: "network or virtual file system", tests: `store.TestNetworkFilesystemIsTold store.TestCheckFilesystem`},

	// Delivery.
	35: {title: "slow consumer", tests: `main.TestStalledReader main.TestSlowInRoomWithoutHistory hub.TestBacklog hub.TestBacklogCountsEventBytes hub.TestStalledBeyondHistory
		hub.TestNoReadingWhileMuchIsUnsent`},
	36: {title: "between subscribe and history", tests: `hub.TestHandover hub.TestFeedModel main.TestRecovery main.TestLongCatchUp`},
	37: {title: "restart and position numbers", tests: `hub.TestPositionsThatDoNotHold hub.TestReconnectFrame store.TestEpoch store.TestOpenMarkIsDurable store.TestRemoveHistory
		store.TestOffsetsAreNeverReused store.TestRestoredCopyHasAnotherEpoch`},
	38: {title: "old connection outlives the new one", tests: `hub.TestOldConnectionEndsLate`},
	39: {title: "order", tests: `main.TestOneOrder main.TestRecovery main.TestManyRooms store.TestManyPublishersAndReaders`},
	40: {title: "acknowledged or delivered before committed", tests: `store.TestKill store.TestKillWhileOperating store.TestCommittedComesBeforeDone store.TestFaultAtEachStage
		store.TestCommitInDoubt main.TestRecovery`},
	41: {title: "sending to a connection that is just closing", tests: `hub.TestEndsOfAllKindsAtOnce hub.TestSweepWhileMembersLeave main.TestNothingLeft`},

	// HTTP API and operations.
	42: {title: "SIGTERM", tests: `main.TestTermWithWritesWaiting main.TestSecondSignal hub.TestDrain hub.TestDrainAcknowledges hub.TestUpgradeWhileDraining hub.TestAdminDuringDrain
		hub.TestRestDuringDrain testdata/script/serve_restart.txtar main.TestUnitFile`},
	43: {title: "typing error in the configuration", tests: `testdata/script/config_mistakes.txtar testdata/script/config_secrets.txtar testdata/script/tls.txtar main.FuzzConfig
		main.TestExampleHoldsEveryKey hub.TestFailingReload testdata/script/reload.txtar`},
	44: {title: "out of descriptors", tests: `main.TestFewDescriptors hub.TestAcceptBacksOff hub.TestOutOfDescriptors hub/poll.TestOutOfDescriptors
		main.TestUnitFile`},
	45: {title: "metric labels from outside", tests: `hub.TestMetricLabels hub.TestMetricsStayBounded`},
	46: {title: "panic", tests: `hub.TestPanicInACommand hub.TestPanicInARoom hub.TestPanicInACommit hub.TestPanicInAReader hub.TestWorkersSurvivePanics hub.TestPanicInAHandler
		hub.TestPanicInSetupFreesTheSlot hub.TestUnaskedPongs hub.TestBadFrames main.TestBadInput hub/wire.FuzzCommands`},
	47: {title: "names become paths", tests: `hub.TestNamesAreNoPaths hub.TestValidDatabase hub.TestValidRoom hub.TestRestNames hub.TestUnknownRoutes store.TestPath
		testdata/script/config_mistakes.txtar`},
	48: {title: "quiet lies and repeats", tests: `hub.TestReadiness hub.TestAdminDuringDrain store.TestLastingFault store.TestProbeMakesNoFile
		hub.TestAPIIdempotency hub.TestRPCPublish hub.TestPublicationIDThroughAllDoors store.TestIdempotency
		auth.TestKeyEqual hub.TestKeysAreComparedInConstantTime hub.TestKeysThatAreNotSet`},
}

// TestFailureCases holds the table: every case is in it, with tests that exist.
func TestFailureCases(t *testing.T) {
	const last = 48
	named := make(map[string]map[string]bool) // tests by directory
	for n := 1; n <= last; n++ {
		c, known := failureCases[n]
		if !known {
			t.Errorf("G%d is missing", n)
			continue
		}
		tests := strings.Fields(c.tests)
		if len(tests) == 0 {
			t.Errorf("G%d %s: no test", n, c.title)
		}
		for _, name := range tests {
			if err := testExists(named, name); err != nil {
				t.Errorf("G%d %s: %v", n, c.title, err)
			}
		}
	}
	if len(failureCases) > last {
		t.Errorf("%d cases, G%d is the last", len(failureCases), last)
	}
}

// testExists looks for a script, or for a function in the test files of a directory.
func testExists(named map[string]map[string]bool, name string) error {
	if path.Ext(name) == ".txtar" {
		_, err := os.Stat(filepath.FromSlash(name))
		return err
	}
	dir, function, _ := strings.Cut(name, ".")
	if dir == "main" {
		dir = "."
	}
	if named[dir] == nil {
		tests, err := testsOf(filepath.FromSlash(dir))
		if err != nil {
			return err
		}
		named[dir] = tests
	}
	if !named[dir][function] {
		return fmt.Errorf("there is no %s", name)
	}
	return nil
}

// testsOf returns the tests of a directory, those of other systems included.
func testsOf(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	tests := make(map[string]bool)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && (strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
				tests[f.Name.Name] = true
			}
		}
	}
	return tests, nil
}
