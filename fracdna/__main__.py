from fracdna.cli import main

main()
