package loadtest

const limitsChanged = ""
